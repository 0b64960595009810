"""A backend for Harbor's own runner over our sandbox: ``harbor run -e harbor_backend:Sandboxed -p TASK``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from agl_programs.harbor import LOGS, SOLUTION, TESTS, trial
from agl_programs.harbor_task import HarborTask
from harbor.environments.base import BaseEnvironment, ExecResult


class Sandboxed(BaseEnvironment):  # type: ignore[misc]  # untyped where Harbor is missing
    """One task in a sandbox, opened as an attempt of ours opens it; Harbor puts tests and logs into it."""

    @staticmethod
    def type() -> str:
        return "sandboxed"

    def _validate_definition(self) -> None:
        HarborTask(self.environment_dir.parent)

    async def start(self, force_build: bool) -> None:
        self._stack = AsyncExitStack()
        self._trial = await self._stack.enter_async_context(
            trial({"folder": str(self.environment_dir.parent)})
        )
        for path in (TESTS, SOLUTION, LOGS):
            place = self._trial._place(path)
            for name in ("agent", "user-agent", "verifier", "artifacts") if path == LOGS else ():
                self._trial._box.add_folder(f"{place}/{name}")

    async def stop(self, delete: bool) -> None:
        await self._stack.aclose()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        line = f"cd {cwd} && {command}" if cwd else command
        done = await self._trial.run(["/bin/bash", "-c", line], env=self._merge_env(env) or {})
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.status)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self._trial.copy(Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        self._trial.copy(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).write_bytes(self._trial.read(source_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        listed = await self._trial.run(["find", source_dir, "-type", "f", "-printf", r"%P\n"])
        for name in listed.stdout.splitlines():
            target = Path(target_dir) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._trial.read(f"{source_dir}/{name}"))
