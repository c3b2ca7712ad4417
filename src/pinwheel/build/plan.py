"""What a build will find and do, by looking at what is there; nothing is made, moved or fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinwheel.build.costs import Costs, Estimate, costs_path, estimate, minutes, read_costs
from pinwheel.build.jobs import JobPlan, plan_jobs, this_machine
from pinwheel.build.order import Order, Request
from pinwheel.build.placing import SIDECAR, require_writable
from pinwheel.build.progress import Events, costs_of, read_steps
from pinwheel.build.work import Work
from pinwheel.buildroot.environment import digest_of
from pinwheel.buildroot.lastuse import lock_of
from pinwheel.buildroot.root import root_digest
from pinwheel.buildroot.sandbox import preflight
from pinwheel.console import counted
from pinwheel.errors import BusyError, PinwheelError
from pinwheel.files import disk_full, existing_parent, free_bytes, held, human_bytes, sha256_file
from pinwheel.inputs.fetch import offline_error
from pinwheel.inputs.report import Stock, take_stock
from pinwheel.inputs.store import Store
from pinwheel.recipe.data import root_data
from pinwheel.recipe.lock import Role, SourceKind
from pinwheel.settings import Settings
from pinwheel.toolkit.assemble import toolkit_key
from pinwheel.toolkit.kept import listing_of
from pinwheel.toolkit.spec import load_spec

# Bytes on the disk for each byte of the locked files, rounded up. Measured with du on what the
# lock of cu121-torch2.3-vllm0.6.3 makes: 489 MB of 113, 74 of 33, 1756 of 1689, 5217 of 2878.
_GROWS = {Role.ROOT: 4.5, Role.TOOL: 2.5, Role.TOOLKIT: 1.1, Role.BUILD: 2.0, Role.RUN: 2.0}

TAKEN = (
    "a wheel that another lock made has this version: where its name is the same too, this build "
    "is refused at its end (exit code 50) unless --replace is given"
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the workbench: ``made`` when it is in the cache; ``size`` is bytes it takes."""

    name: str
    path: Path
    made: bool
    size: int


@dataclass(frozen=True, slots=True)
class Compile:
    """The compile ahead.

    Attributes:
        sources: how many there are; None before CMake has said so.
        done: how many of them a stopped run of this very build has compiled.
        estimate: how long the others take.
    """

    sources: int | None
    done: int
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class There:
    """A wheel of the same version and build tag in ``dist/``."""

    path: Path
    same_lock: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A build as it would go now.

    Attributes:
        order: what is asked for.
        stock: which inputs are in the store.
        bench: what the compile stands on.
        jobs: compilers at once.
        compile: what the compile takes.
        free: bytes free where the cache is.
        out_dir: where the wheel goes.
        unchanged: the wheel of an earlier build of exactly this; then there is nothing to do.
        there: wheels of the same version in ``out_dir``.
    """

    order: Order
    stock: Stock
    bench: tuple[Part, ...]
    jobs: JobPlan
    compile: Compile
    cache: Path
    free: int
    out_dir: Path
    unchanged: Path | None
    there: tuple[There, ...]

    @property
    def unpacking(self) -> int:
        """Bytes that the parts to be made take, about."""
        return sum(part.size for part in self.bench if not part.made)

    @property
    def taken(self) -> bool:
        """Whether a wheel that came of other inputs has the version, and so perhaps the name."""
        return any(not wheel.same_lock for wheel in self.there)

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for ``--json``; bytes and seconds."""
        order, stock, ahead = self.order, self.stock, self.compile
        return {
            "combo": str(order.loaded.combo),
            "version": order.version,
            "build-tag": order.build_tag,
            "toolkit": order.toolkit,
            "capabilities": [str(c) for c in order.capabilities],
            "lock": str(order.lock_path),
            "inputs": len(order.lock.inputs),
            "bytes": sum(i.size for i in order.lock.inputs),
            "patches": list(order.loaded.patch_names()),
            "features": {n: f.state for n, f in order.loaded.recipe.features.items()},
            "store": stock.as_dict(),
            "workbench": {
                part.name: {"path": str(part.path), "made": part.made} for part in self.bench
            },
            "jobs": self.jobs.jobs,
            "jobs-reason": self.jobs.reason,
            "compile": {
                "sources": ahead.sources,
                "compiled": ahead.done,
                "seconds": ahead.estimate.seconds,
                "estimate": ahead.estimate.left,
                "basis": ahead.estimate.basis,
            },
            "disk": {
                "path": str(self.cache),
                "free": self.free,
                "download": stock.download,
                "unpack": self.unpacking,
            },
            "result": str(self.out_dir),
            "unchanged": None if self.unchanged is None else str(self.unchanged),
            "there": [{"wheel": str(w.path), "same-lock": w.same_lock} for w in self.there],
        }

    def rows(self) -> list[tuple[str, str]]:
        """For a person: what, value."""
        order = self.order
        features = order.loaded.recipe.features
        rows = [
            ("combo", str(order.loaded.combo)),
            ("version", f"{order.version}, build tag {order.build_tag}"),
            ("capabilities", " ".join(map(str, order.capabilities))),
            ("toolkit", f"{order.toolkit} (CUDA {order.line})"),
            ("lock", str(order.lock_path)),
            ("patches", str(len(order.loaded.patches))),
            ("features", ", ".join(f"{n}: {f.state}" for n, f in features.items())),
            ("inputs", self.stock.summary()),
            ("workbench", self._workbench()),
            ("compilers", f"{self.jobs.jobs} at once, {self.jobs.reason}"),
            ("sources", self._sources()),
            ("compile time", self._time()),
            ("disk", self._disk()),
            ("result", self._result()),
        ]
        return [(what, value) for what, value in rows if value]

    def verdict(self) -> str:
        """One line: what the build would do."""
        if self.unchanged is not None:
            return f"would build nothing: {self.unchanged} is what this lock builds"
        return f"would build {self.order.version} for {self.order.capability_list}"

    def _workbench(self) -> str:
        made = ", ".join(part.name for part in self.bench if part.made)
        new = ", ".join(part.name for part in self.bench if not part.made)
        return "; ".join([f"made: {made}"] * bool(made) + [f"to be made: {new}"] * bool(new))

    def _sources(self) -> str:
        ahead = self.compile
        if ahead.sources is None:
            return "not known before the first build of this combo: CMake decides"
        done = f", {ahead.done} of them compiled by a run that was stopped" if ahead.done else ""
        return f"{ahead.sources}{done}"

    def _time(self) -> str:
        known = self.compile.estimate
        if known.seconds is None:
            return f"not known{f' ({known.basis})' if known.basis else ''}"
        word = known.left.partition(" left")[0]
        return f"{word}, {known.basis}; what the compile cache holds takes less"

    def _disk(self) -> str:
        need = self.stock.download + self.unpacking
        said = f"{human_bytes(self.free)} free at {existing_parent(self.cache)}"
        if not need:
            return f"{said}; nothing to download or unpack, the compile's own files come on top"
        short = "too little: " if need > self.free else ""
        return (
            f"{short}{said}, about {human_bytes(need)} needed: {human_bytes(self.stock.download)} "
            f"to download, about {human_bytes(self.unpacking)} to unpack; the compile's own files "
            "come on top"
        )

    def _result(self) -> str:
        if not self.there:
            return str(self.out_dir)
        told = ", ".join(
            f"{w.path.name} (of {'this' if w.same_lock else 'another'} lock)" for w in self.there
        )
        return f"{self.out_dir}; there already: {told}"


def take_plan(request: Request, order: Order, settings: Settings, unchanged: Path | None) -> Plan:
    """Look at store, cache and ``dist/`` for an order.

    Args:
        request: what was asked for.
        order: the same, read and checked.
        settings: where everything is.
        unchanged: the wheel, where an earlier build of exactly this has made it.
    """
    jobs = plan_jobs(this_machine(), order.loaded.recipe.build.job_memory_gib, request.jobs)
    out_dir = settings.dist / str(order.loaded.combo)
    return Plan(
        order=order,
        stock=take_stock(order.lock.inputs, Store(settings.store)),
        bench=tuple(_bench(order, settings.cache)),
        jobs=jobs,
        compile=_compile(work_of(order, settings), costs_of_order(order, settings), jobs.jobs),
        cache=settings.cache,
        free=free_bytes(settings.cache),
        out_dir=out_dir,
        unchanged=unchanged,
        there=tuple(_there(order, out_dir)),
    )


def work_of(order: Order, settings: Settings) -> Work:
    """The work directory of an order."""
    return Work(settings.work / f"{order.loaded.combo}-{order.key}")


def costs_of_order(order: Order, settings: Settings) -> Path:
    """The file with the times of earlier builds of an order's combo."""
    directory = settings.cache / "costs"
    return costs_path(directory, str(order.loaded.combo), len(order.capabilities))


def obstacles(plan: Plan, settings: Settings) -> list[PinwheelError]:
    """What would stop the build before or while it fetches, as far as can be seen now."""
    order, stock = plan.order, plan.stock
    name = str(order.loaded.combo)
    command = f"pinwheel fetch --combo {name} --toolkit {order.toolkit}"

    def busy() -> None:
        work = work_of(order, settings).path
        if held(lock_of(work)):
            raise BusyError(
                f"another pinwheel is working on {work.name}",
                evidence=(f"{lock_of(work)} is locked",),
                next_step="Wait for it to finish, or stop it, then run this again.",
            )

    def sources() -> None:
        if settings.offline and stock.missing:
            raise offline_error(stock.missing, command)
        for kind in {item.source for item in stock.missing}:
            # An archive by date serves what a Debian mirror does.
            dated = kind is SourceKind.DEBIAN and order.lock.debian_snapshot
            if not (dated and settings.debian_snapshot):
                settings.require(kind.value)

    def space() -> None:
        if stock.download > plan.free:
            raise disk_full(settings.store, f"{human_bytes(stock.download)} are to be fetched")

    checks: tuple[Callable[[], None], ...] = (
        preflight,
        lambda: require_writable(plan.out_dir),
        lambda: require_writable(settings.work),
        busy,
        sources,
        space,
    )
    found = []
    for check in checks:
        try:
            check()
        except PinwheelError as error:
            found.append(error)
    return found


def _bench(order: Order, cache: Path) -> Iterator[Part]:
    """The parts that :func:`pinwheel.build.bench.set_up` makes, by the names it gives them."""
    lock = order.lock

    def part(name: str, path: Path, role: Role) -> Part:
        size = sum(i.size for i in lock.with_role(role)) * _GROWS[role]
        # Without its listing a directory is not trusted, and made anew.
        return Part(name, path, path.is_dir() and listing_of(path).is_file(), round(size))

    debs = sorted(lock.with_role(Role.ROOT), key=lambda i: (i.name, i.version))
    root = root_digest(debs, root_data().layout)[:32]
    yield part("build root", cache / "roots" / root, Role.ROOT)
    yield part("tools", cache / "tools" / digest_of(lock.with_role(Role.TOOL)), Role.TOOL)
    spec = load_spec(lock.toolkit)
    key = toolkit_key(spec, {i.name: i.sha256 for i in lock.with_role(Role.TOOLKIT)})
    yield part("toolkit", cache / "toolkits" / f"{spec.name}-{key[:16]}", Role.TOOLKIT)
    build = lock.with_role(Role.BUILD)
    yield part("build environment", cache / "envs" / digest_of(build, root), Role.BUILD)
    # The proof's is made for each wheel anew; what both have is one file.
    more = sum(i.size for i in lock.with_role(Role.RUN) if i not in build) * _GROWS[Role.RUN]
    yield Part("environment of the proof", cache / "envs", False, round(more))


def _compile(work: Work, costs_file: Path, jobs: int) -> Compile:
    costs = read_costs(costs_file)
    events = Events(work.logs / "events.jsonl")
    events.poll()
    finished = costs_of(events.runs)
    steps = read_steps(work.source)
    if not steps and not costs.whole:
        return Compile(costs.sources, 0, Estimate(basis=_why_unknown(costs)))
    waiting = [s for s in steps or costs.seconds if s not in finished]
    known = costs if costs.seconds else Costs(seconds=finished)
    said = estimate(known, waiting=waiting, running={}, finished=finished, jobs=jobs)
    if not waiting:
        said = Estimate(f"{minutes(0)} left", "all sources are compiled", 0.0)
    elif said.seconds is None:
        said = Estimate(basis=_why_unknown(known))
    total = len(steps) or len(costs.seconds)
    return Compile(total, total - len(waiting), said)


def _why_unknown(costs: Costs) -> str:
    if not costs.seconds:
        return "nothing was built before"
    if costs.sources is None:
        timed = counted(len(costs.seconds), "source")
        return f"{timed} timed before, and nobody noted of how many"
    return f"earlier builds timed {len(costs.seconds)} of {costs.sources} sources, and were stopped"


def _there(order: Order, out_dir: Path) -> Iterator[There]:
    """Wheels in ``dist/`` whose name begins as this one's will, by the manifest beside each."""
    project = order.loaded.recipe.source.package.replace("-", "_")
    for path in sorted(out_dir.glob(f"{project}-{order.version}-{order.build_tag}-*.whl")):
        manifest: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):
            manifest = json.loads(path.with_name(f"{path.name}{SIDECAR}").read_text())
        same = isinstance(manifest, dict) and manifest.get("lock-sha256") == sha256_file(
            order.lock_path
        )
        yield There(path, same)
