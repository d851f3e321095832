"""The MCP server: one tool a module in `tools`, resources, prompts, transports.

Only `app`, `stdio` and `http` import the SDK; what runs inside a job's process does not.
"""
