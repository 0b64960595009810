"""``agl plugins``: what is installed, and which hooks it uses."""

from __future__ import annotations

import typer
from rich.text import Text

from agentlightning.cli.options import JsonObject
from agentlightning.plugins.manager import load
from agentlightning.terminal import Console, TextTable, print_json

KINDS = (
    "adapters", "recipes", "algorithms", "drivers", "runners", "stores", "store_operations", "credit_rules",
    "baselines", "trackers", "policies", "api_formats", "run_services", "commands",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    @app.command("plugins")
    def plugins(as_json: JsonObject = False) -> None:
        """List plugins, the names they register, and plugins that could not be loaded."""
        loaded = load()
        hooks = {
            name: sorted(caller.name for caller in loaded.manager.get_hookcallers(plugin) or [])
            for name, plugin in loaded.manager.list_name_plugin()
        }
        tables = {kind: sorted(loaded.table(f"agl_{kind}")) for kind in KINDS}
        if as_json:
            print_json({"plugins": hooks, **tables, "broken": loaded.broken})
            raise typer.Exit(bool(loaded.broken))
        console = Console()
        table = TextTable("plugin", "hooks", title="plugins", title_justify="left")
        for name, used in hooks.items():
            table.add_row(name, ", ".join(used))
        console.print(table)
        for kind, names in tables.items():
            console.print(f"[bold]{kind:17}[/] {', '.join(names) or '–'}")
        for name, why in loaded.broken.items():
            console.print(Text.assemble(("broken", "red"), f" {name}: {why}"))
        if loaded.broken:
            raise typer.Exit(1)
