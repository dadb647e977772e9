"""Commands that are imported when they are called: `rl-gauntlet plan --help` must not wait for torch or for reports."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from harness.errors import RequestError, UserError, nearest

PLUGINS = "rl_gauntlet.commands"  # the entry-point group by which other packages add commands


class BrokenCommandError(UserError):
    """A command's package cannot be loaded."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of our own: `target` is the `module:function` that is it, imported when it is called."""

    target: str
    help: str


def lazy_group(commands: dict[str, Command]) -> type[TyperGroup]:
    """A group of `commands` and of those that plug-ins add. A plug-in cannot replace one of ours."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self._plugins = {point.name: point for point in entry_points(group=PLUGINS) if point.name not in commands}
            for name, command in commands.items():
                self.commands[name] = TyperCommand(name, help=command.help)
            for name, point in sorted(self._plugins.items()):
                self.commands[name] = TyperCommand(name, help=f"Added by {_origin(point)}.")

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name = args[0]
            if name in commands:
                self.commands[name] = _real(name, commands[name].target)
            elif name in self._plugins:
                self.commands[name] = _plugin(self._plugins[name])
            elif not name.startswith("-"):
                raise RequestError(f'there is no command "{name}"; {nearest(name, self.commands)}')
            return super().resolve_command(ctx, args)

    return LazyGroup


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _real(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    return _as_command(name, getattr(importlib.import_module(module), attribute))


def _plugin(point: EntryPoint) -> Any:
    """Load another package's command. Whatever its import raises is that package's fault, and told in one line."""
    try:
        return _as_command(point.name, point.load())
    except Exception as error:
        raise BrokenCommandError(
            f'command "{point.name}" of {_origin(point)} cannot be loaded from {point.value} '
            f"({type(error).__name__}: {error}); mend or uninstall that package"
        ) from error


def _as_command(name: str, target: Any) -> Any:
    """A typer app, a click command, or a plain function with typer's annotations, as a command of this name."""
    if callable(target) and not isinstance(target, typer.Typer) and not hasattr(target, "make_context"):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(target)
        target = app
    command = typer.main.get_command(target) if isinstance(target, typer.Typer) else target
    command.name = name
    return command
