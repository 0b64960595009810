"""``agl plugins``: what is installed, and which hooks it uses."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    @app.command("plugins")
    def plugins() -> None:
        """List plugins, the names they register, and plugins that could not be loaded."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        from agentlightning.plugins.manager import load

        loaded = load()
        table = Table(title="plugins", title_justify="left")
        table.add_column("plugin")
        table.add_column("hooks")
        for name, plugin in loaded.manager.list_name_plugin():
            callers = loaded.manager.get_hookcallers(plugin) or []
            table.add_row(name, ", ".join(sorted(caller.name for caller in callers)))
        kinds = (
            "adapters",
            "recipes",
            "algorithms",
            "drivers",
            "stores",
            "credit_rules",
            "baselines",
            "trackers",
            "commands",
        )
        console = Console()
        console.print(table)
        for kind in kinds:
            console.print(f"[bold]{kind:13}[/] {', '.join(sorted(getattr(loaded, kind))) or '–'}")
        for name, why in loaded.broken.items():
            console.print(Text.assemble(("broken", "red"), f" {name}: {why}"))
        if loaded.broken:
            raise typer.Exit(1)
