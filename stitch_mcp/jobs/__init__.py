"""Jobs: one request, run in a child process group of its own, its state on disk.

`Supervisor` starts, watches and cancels them; `stitch_mcp.jobs.child` is what runs inside. Whether a job is
alive is shown by the lock that its process holds, never by a file that a killed process cannot correct.
"""
