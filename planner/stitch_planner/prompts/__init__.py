"""The prompts: Markdown files with variables, put together by `stitch_planner.agents.prompting`."""
