"""Worker processes of a runner, and runner processes of ``agl runner``: started, watched and ended."""
