"""From a combo to a finished wheel in ``dist/``: the stages in order, nothing of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwheel.build.bench import Bench, set_up
from pinwheel.build.clean import remember_order, remove_superseded
from pinwheel.build.compile import Compiled, CompilePlan, compile_wheel
from pinwheel.build.cubins import count_cubins, require_code
from pinwheel.build.finish import FinishedWheel, FinishPlan, finish
from pinwheel.build.gate import gate
from pinwheel.build.jobs import plan_jobs, this_machine
from pinwheel.build.manifest import kind_of
from pinwheel.build.order import Order, Request, take_order
from pinwheel.build.placing import SIDECAR, place, require_writable, workplace
from pinwheel.build.plan import TAKEN, Plan, costs_of_order, take_plan, work_of
from pinwheel.build.proof import prove_wheel
from pinwheel.build.report import Report, Stages
from pinwheel.build.work import Work, prepare
from pinwheel.buildroot.lastuse import lock_of, mark_used
from pinwheel.buildroot.sandbox import Bind, preflight
from pinwheel.console import Console
from pinwheel.errors import ProofError, WheelError
from pinwheel.files import atomic_write, file_lock, make_directory, sha256_file, writing
from pinwheel.inputs.fetch import fetch
from pinwheel.inputs.patch_file import read_series
from pinwheel.inputs.store import Store
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.parity import compare_wheels
from pinwheel.matrix.capability import format_capabilities
from pinwheel.matrix.models import TorchBuild
from pinwheel.recipe.lock import Role
from pinwheel.settings import Settings
from pinwheel.verify.parity_rule import unbound_operators, wheel_targets


def build(request: Request, settings: Settings, console: Console) -> Report:
    """Build a combo's wheel, or find that it is there already.

    Nothing appears in ``dist/`` before the wheel has been proven. A run that was killed anywhere
    is taken up where it stopped by the same request.

    Raises:
        PinwheelError: any of its kinds; each names the stage's input, rule and evidence.
    """
    stages = Stages()
    preflight()
    order = take_order(request, settings)
    name = str(order.loaded.combo)
    out_dir = settings.dist / name
    require_writable(out_dir)
    work = work_of(order, settings)
    with file_lock(lock_of(work.path), wait=False):
        mark_used(work.path)
        if not request.again and (known := _unchanged(order, work, out_dir)):
            console.say(f"nothing changed: {known.wheel} is what this lock builds")
            return known
        _say(take_plan(request, order, settings, None), request, console)
        store = Store(settings.store)
        with stages.stage("fetch"):
            fetch(
                order.lock.inputs,
                store,
                settings,
                console,
                snapshot=order.lock.debian_snapshot,
                command=f"pinwheel fetch --combo {name} --toolkit {order.toolkit}",
            )
        with stages.stage("verify"):
            files = _verified(order, store, console)
        recipe = order.loaded.recipe
        epoch = order.lock.source_date_epoch
        project = order.loaded.project
        with stages.stage("source"):
            if prepare(work, recipe, order.lock.inputs, files, epoch, project):
                console.say("taking up the build where it stopped")
            remember_order(work, name, order.toolkit, order.capability_list)
        with stages.stage("workbench"):
            bench = set_up(order.lock, files, settings, order.capabilities, console)
        with stages.stage("compile"):
            compiled = compile_wheel(_compile_plan(request, order, work, bench, settings), console)
        console.say(compiled.summary())
        with stages.stage("finish"):
            finished = _finish(order, work, bench, compiled, console)
        with stages.stage("proof"):
            proof = prove_wheel(
                finished.path, order.version, recipe, order.lock, bench, work, settings, console
            )
        with stages.stage("gate"):
            verified = gate(finished.path, order, proof.libraries, settings, console)
        unchanged = _place(finished, out_dir, replace=request.replace)
        wheel = out_dir / finished.path.name
        report = Report(
            wheel=wheel,
            sha256=finished.sha256,
            size=finished.size,
            version=order.version,
            capabilities=tuple(str(c) for c in order.capabilities),
            manifest=finished.manifest,
            unchanged=unchanged,
            run=stages.as_dict(),
            compiled=compiled,
            proof=proof,
            verified=verified,
            record=work.record,
        )
        # The same bytes once more, out of the cache, are no news of what making them takes.
        if not (unchanged and work.record.exists()):
            atomic_write(work.record, (json.dumps(report.figures(), indent=1) + "\n").encode())
        done = {"wheel": wheel.name, "sha256": finished.sha256}
        atomic_write(work.path / "done.json", json.dumps(done).encode())
    for path in remove_superseded(settings, work):
        console.say(f"removed {path}, which this build supersedes")
    return report


def plan_build(request: Request, settings: Settings) -> Plan:
    """What :func:`build` would find and do now; writes nothing.

    Raises:
        PinwheelError: what :func:`pinwheel.build.order.take_order` refuses.
    """
    order = take_order(request, settings)
    known = None
    if not request.again:
        known = _unchanged(order, work_of(order, settings), settings.dist / str(order.loaded.combo))
    return take_plan(request, order, settings, known.wheel if known else None)


def _say(plan: Plan, request: Request, console: Console) -> None:
    console.say(f"building {plan.order.version}")
    for what, value in plan.rows():
        console.say(f"  {what:<12}  {value}")
    if plan.stock.download + plan.unpacking > plan.free:
        console.warn("the disk will probably be full before this build is done")
    if plan.taken and not request.replace:
        console.warn(TAKEN)


def _unchanged(order: Order, work: Work, out_dir: Path) -> Report | None:
    """The report of an earlier build of exactly this, when its wheel is there, byte for byte."""
    try:
        done = json.loads((work.path / "done.json").read_text())
        wheel = out_dir / str(done["wheel"])
        if sha256_file(wheel) != done["sha256"]:
            return None
        manifest = json.loads((out_dir / f"{wheel.name}{SIDECAR}").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Report(
        wheel=wheel,
        sha256=str(done["sha256"]),
        size=wheel.stat().st_size,
        version=order.version,
        capabilities=tuple(str(c) for c in order.capabilities),
        manifest=manifest,
        unchanged=True,
        record=work.record if work.record.exists() else None,
    )


def _verified(order: Order, store: Store, console: Console) -> dict[str, Path]:
    """Every input's file, its bytes compared with the lock once more."""
    inputs = order.lock.inputs
    total = sum(i.size for i in inputs)
    files = {}
    with console.progress(total, "bytes", "verifying inputs") as progress:
        for item in inputs:
            files[item.sha256] = store.get(item)
            progress.advance(item.size)
    return files


def _compile_plan(
    request: Request, order: Order, work: Work, bench: Bench, settings: Settings
) -> CompilePlan:
    recipe = order.loaded.recipe
    return CompilePlan(
        work=work,
        sandbox=bench.sandbox,
        toolkit=bench.toolkit.path,
        environment=bench.environment,
        site=bench.site,
        tools=bench.tools,
        cache=settings.compile_cache,
        capabilities=order.capability_list,
        jobs=plan_jobs(this_machine(), recipe.build.job_memory_gib, request.jobs),
        env=recipe.build.env,
        options=(*recipe.build.options, f"--build-number={order.build_tag}"),
        dependencies=tuple(sorted(recipe.dependencies)),
        release=recipe.source.version,
        epoch=order.lock.source_date_epoch,
        costs=costs_of_order(order, settings),
    )


def _finish(
    order: Order, work: Work, bench: Bench, compiled: Compiled, console: Console
) -> FinishedWheel:
    recipe = order.loaded.recipe

    def strip(libraries: list[Path]) -> None:
        for library in libraries:
            result = bench.sandbox.run(
                ["/usr/bin/strip", f"/out/{library.name}"],
                binds=[Bind(library.parent, "/out", writable=True)],
            )
            if result.returncode != 0:
                raise WheelError(
                    f"{library.name} could not be stripped",
                    evidence=result.output.splitlines()[-5:],
                    next_step="The library is damaged: look into the build's link step.",
                )

    def pack(tree: Path, packed: Path, epoch: int) -> None:
        result = bench.sandbox.run(
            [
                *("/usr/bin/python3", "-IS", "/opt/pinwheel/zipping.py"),
                *("/build/tree", f"/out/{packed.name}", str(epoch)),
            ],
            binds=[
                Bind(tree, "/build/tree"),
                Bind(packed.parent, "/out", writable=True),
                Bind(work.inside, "/opt/pinwheel"),
            ],
        )
        if result.returncode != 0:
            raise ValueError(result.output.strip().splitlines()[-1:] or "no reason given")

    counts: dict[str, dict[str, int]] = {}

    def describe(name: str, path: Path) -> Mapping[str, Any]:
        if not recipe.extensions[name].machine_code:
            return {}
        counts[name] = count_cubins(path, bench.sandbox, bench.toolkit.path)
        return {"cubins": counts[name]}

    plan = FinishPlan(
        raw=compiled.wheel,
        out_dir=make_directory(work.path / "finished"),
        distribution=order.loaded.combo.package,
        version=order.version,
        source_date_epoch=order.lock.source_date_epoch,
        strip=strip,
        pack=pack,
        describe=describe,
        extensions={name: e.machine_code for name, e in recipe.extensions.items()},
        facts=_facts(order, bench, compiled.wheel),
        excluded_libraries=elsewhere(),
        build_paths=("/build/", "/opt/", "/cache/", "/logs/"),
        requirements=recipe.requirements,
        version_file=True,
        built_for=_built_for(order.torch),
        locked={i.name: i.version for i in order.lock.with_role(Role.RUN)},
        python=recipe.python,
        replace=True,
    )
    finished = finish(plan, console)
    if counts:
        require_code(counts, order.capabilities, known=order.matrix.known)
    return finished


def _built_for(torch: TorchBuild) -> dict[str, str | bool]:
    """What the wheel's own import-time guard compares the running torch with."""
    facts: dict[str, str | bool] = {"TORCH": torch.version, "CUDA": torch.cuda}
    if torch.cxx11_abi is not None:
        facts["CXX11_ABI"] = torch.cxx11_abi
    return facts


def _facts(order: Order, bench: Bench, raw: Path) -> dict[str, Any]:
    """What the manifest says beyond what is read from the wheel; nothing of time, host or user."""
    recipe = order.loaded.recipe
    driver = recipe.driver[order.toolkit]
    patches = read_series(order.loaded.patches)
    return {
        "combo": str(order.loaded.combo),
        "lock-sha256": sha256_file(order.lock_path),
        "recipe-sha256": order.loaded.digest,
        "native": recipe.native,
        "root": {"kind": kind_of(order.lock, Role.ROOT), "digest": bench.sandbox.root.name},
        "toolkit": {
            "kind": kind_of(order.lock, Role.TOOLKIT),
            "name": bench.toolkit.name,
            "line": bench.toolkit.line,
            "nvcc": bench.toolkit.nvcc_version,
            "tree-sha256": bench.toolkit.digest,
        },
        "torch": {
            "version": order.torch.version,
            "cuda": order.torch.cuda,
            "cxx11-abi": order.torch.cxx11_abi,
        },
        "python": recipe.python,
        "driver": {"native": driver.native, "minimum": driver.minimum},
        "capabilities": [str(c) for c in order.capabilities],
        "capabilities-of-recipe": format_capabilities(
            order.matrix.parse_capabilities(recipe.capabilities)
        ),
        "features": {
            name: {"state": f.state, "reason": f.reason} for name, f in recipe.features.items()
        },
        "patches": [{"name": p.name, "sha256": p.sha256, "why": p.why} for p in patches],
        "requirements": [
            {"old": r.old, "new": r.new, "reason": r.reason} for r in recipe.requirements
        ],
        "operators": {name: list(e.operators) for name, e in recipe.extensions.items()},
        "code-exceptions": [row.model_dump() for row in recipe.code_exceptions],
        "parity": _parity(order, bench, raw, {path for p in patches for path in p.paths}),
    }


def _parity(order: Order, bench: Bench, raw: Path, patched: set[str]) -> dict[str, Any] | None:
    """How the raw wheel differs from upstream's own; None when the lock has no official wheel.

    Raises:
        ProofError: a difference nothing explains.
    """
    official = order.lock.with_role(Role.REFERENCE)
    if not official:
        return None
    recipe = order.loaded.recipe
    (item,) = official
    # The official wheel keeps its name: what kind of wheel it is stands there.
    named = raw.parent.parent / "reference" / item.path
    make_directory(named.parent)
    named.unlink(missing_ok=True)
    named.symlink_to(bench.files[item.sha256])
    parity = compare_wheels(
        raw,
        named,
        absent_ok=recipe.proof.official_absent,
        patched=patched,
        namespaces={n: e.namespace for n, e in recipe.extensions.items() if e.namespace},
        # Compilers hide short schemas in instructions; the proof holds the recipe to these names.
        registered={n: e.operators for n, e in recipe.extensions.items()},
        unbound=unbound_operators(recipe, map(str, order.capabilities)),
    )
    if not parity.ok:
        raise ProofError(
            f"{raw.name} differs from the official {item.path} in ways nothing explains.",
            evidence=[str(d) for d in parity.unexplained][:40],
            next_step="State what is meant in the recipe ([proof] official-absent) or in the "
            "patch series; otherwise correct the build.",
        )
    return {**parity.as_dict(), "official-targets": wheel_targets(named, named.parent)}


def _place(finished: FinishedWheel, out_dir: Path, *, replace: bool) -> bool:
    """Copy the proven wheel and its sidecar to ``dist/<combo>``, whole or not at all."""
    beside = finished.path.with_name(f"{finished.path.name}{SIDECAR}").read_bytes()
    make_directory(out_dir)  # not before: a build that ends earlier leaves no empty one
    with workplace(out_dir) as staging:
        named = staging / finished.path.name
        with writing(named):
            shutil.copyfile(finished.path, named)
        return place(named, out_dir, finished.sha256, beside, replace=replace)
