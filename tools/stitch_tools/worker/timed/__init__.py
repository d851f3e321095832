"""The timed region inside the target interpreter."""
