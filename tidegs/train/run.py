"""A training run from the first file to the last: scene, ingest, budgets, training, evaluation, exports, summary.

Invariant: a result folder that holds a run is never overwritten; what a crash leaves can be resumed or is said to be
unusable in one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidegs.config import TrainConfig, dump_config
from tidegs.data.scene import Scene
from tidegs.errors import ConfigError
from tidegs.eval.evaluate import Evaluation, evaluate
from tidegs.files import write_bytes, write_json
from tidegs.gaussians.open import open_gaussians
from tidegs.machine import short_of_space
from tidegs.report.looks import Painter
from tidegs.report.viewer import DEFAULT_PORT, Viewer, check_viewer
from tidegs.train.export import export_store, ply_nbytes
from tidegs.train.ledger import header
from tidegs.train.log import TrainLog, say
from tidegs.train.made_ahead import begin_ahead
from tidegs.train.plan import plan_session
from tidegs.train.poses import check_resumed
from tidegs.train.profile import Profile
from tidegs.train.rates import render_settings
from tidegs.train.result import ResultFolder
from tidegs.train.session import Session, ingest_file, ingest_scene, input_of, open_scene
from tidegs.train.sparse_depths import SparseDepths
from tidegs.train.state import steps_done
from tidegs.train.strategies.choose import check_strategy, resolved
from tidegs.train.summary import build_summary
from tidegs.train.trainer import Trainer
from tidegs.train.watchers import LogFile, TensorBoard, Watcher, check_watchers


@dataclass(frozen=True)
class RunRequest:
    """What the user asked for."""

    scene: Path | None  # None: the one that the result was begun with
    out: Path
    store: Path | None  # None: inside the result folder
    config: TrainConfig
    resume: bool
    evaluate: bool
    quiet: bool
    log_file: Path | None = None
    tensorboard: bool = False
    viewer: bool = False
    profile: bool = False
    init: Path | None = None  # a file of Gaussians to start from, in the frame of the input scene


@dataclass(frozen=True)
class RunOutcome:
    """How the run ended."""

    finished: bool
    step: int
    summary: dict[str, Any]


def run_training(request: RunRequest) -> RunOutcome:
    """Trains, or goes on training. Raises TidegsError."""
    check_watchers(request.log_file, request.tensorboard)
    if request.viewer:
        check_viewer()
    result = ResultFolder(request.out)
    config = request.config.scaled()
    if request.resume:
        scene = open_scene(request.scene or Path(result.read_run().scene), config, request.quiet)
        store = result.store_path()
        check_strategy(config, result.config())
        check_resumed(config, result.config())
        write_bytes(result.cfg, dump_config(config).encode())
    else:
        check_strategy(config)
        store = request.store or request.out / "store"
        _refuse_existing(result)
        assert request.scene is not None
        scene = open_scene(request.scene, config, request.quiet)
        if (store / "root").exists():
            config = begin_ahead(store, scene, config, request.init)
        elif request.init:
            open_gaussians(request.init)  # refuse it before anything is written
            config = resolved(config, None)
        else:
            config = resolved(config, scene.require_points().count)
        if config.depth_loss:
            SparseDepths(scene, config.depth_lambda)  # refuse the scene before anything is written
        result.begin(config, scene, store, request.init)
    if not (store / "root").exists():  # a new run, or one that ended while it ingested
        _ingest(scene, store, config, result.read_run().init, request.quiet)
    with Session(scene, store, config, result) as session:
        return _train(session, request)


def _ingest(scene: Scene, store: Path, config: TrainConfig, init: str, quiet: bool) -> None:
    if not init:
        kind = "random points" if config.init_random else "points"
        say(f"ingesting {scene.require_points().count:,} {kind} into {store}", quiet)
        ingest_scene(scene.require_points(), store, config, quiet, source=input_of(scene, config))
        return
    file = open_gaussians(Path(init))
    say(
        f"ingesting {file.count:,} Gaussians of SH degree {file.sh_degree} ({file.format}) into {store}; the "
        "optimizer's state starts anew",
        quiet,
    )
    if file.sh_degree > config.sh_degree:
        say(f"warning: {init}: harmonics above sh_degree {config.sh_degree} are left out", quiet)
    if file.antialiased is not None and file.antialiased != config.antialiased:
        flag = "--antialiased" if file.antialiased else "--no-antialiased"
        say(f"warning: {init}: it was trained with {flag}, and this run is not", quiet)
    ingest_file(scene, store, config, file, quiet)


def _refuse_existing(result: ResultFolder) -> None:
    if result.run.exists():
        raise ConfigError(
            f"{result.root} already holds a run; go on with `tidegs train --resume {result.root}`, "
            "or choose another folder with --out"
        )


def _train(session: Session, request: RunRequest) -> RunOutcome:
    config, result = session.config, session.result
    evaluations: dict[int, Evaluation] = {}

    def at_step(step: int) -> None:
        if request.evaluate and step in (*config.eval_steps, config.max_steps) and session.scene.test:
            evaluations[step] = evaluate_session(session, step)
            log.say(_score(step, evaluations[step]))
            pictures = sorted(result.renders.glob(f"val_step{step:04d}_*.png"))
            log.evaluated(step, evaluations[step].as_json(), pictures)
        if request.evaluate and step in (*config.ply_steps, config.max_steps):
            path = result.ply / f"point_cloud_{step}.ply"
            if short := short_of_space(path.parent, ply_nbytes(session.num_gaussians, session.store.layout)):
                log.say(f"{path} is not written: {short}; tidegs export writes a part of the scene (--crop)")
                return
            export_store(session.store, path, session.scene.transform, config.antialiased, progress=False)

    watchers = _watchers(session, request)
    log = TrainLog(result.stats / "train.jsonl", steps_done(session.store), config.max_steps, request.quiet, watchers)
    viewer = _viewer(session) if request.viewer else None
    profile = Profile(result.stats / "trace.json", session.device) if request.profile else None
    between = [one.between_steps for one in (viewer, profile) if one]
    try:
        log.say(session.budgets.sentence())
        if session.route:
            log.say(session.route)
        if viewer:
            log.say(f"look at it at {viewer.address}")
        trainer = Trainer(session, log, at_step, between)
        write_json(result.stats / "ledger.json", header(session, trainer.order.name).as_json())
        if trainer.step == 0:
            write_json(result.stats / "plan.json", plan_session(session, trainer.order).as_json())
        outcome = trainer.run()
    finally:
        log.close()
        for one in (viewer, profile):
            if one:
                one.close()
    summary = build_summary(session, outcome, trainer, evaluations.get(outcome.step))
    write_json(result.stats / "summary.json", summary)
    return RunOutcome(outcome.finished, outcome.step, summary)


def _watchers(session: Session, request: RunRequest) -> list[Watcher]:
    out: list[Watcher] = []
    if request.log_file:
        out.append(LogFile(request.log_file))
    if request.tensorboard:
        out.append(TensorBoard(session.result.root / "tb"))
    return out


def _viewer(session: Session) -> Viewer:
    """Shows the run to browsers, between its steps."""
    settings = replace(render_settings(session.config, 0), sh_degree=session.config.sh_degree)
    painter = Painter(session.residency, session.device, settings)
    return Viewer(painter, session.views, session.store.table, settings.sh_degree, DEFAULT_PORT)


def evaluate_session(session: Session, step: int, save: bool = True) -> Evaluation:
    """Scores the test split of an open session, saves comparisons, and writes stats/val_stepNNNN.json."""
    scene, config, result = session.scene, session.config, session.result
    session.images.announce(scene.test)
    found = evaluate(
        scene,
        scene.test,
        session.render(scene.test, step),
        session.target,
        session.num_gaussians,
        config.data_factor,
        config.test_every,
        (lambda k: result.renders / f"val_step{step:04d}_{k:04d}.png") if save else None,
        config.exposure,
    )
    write_json(result.stats / f"val_step{step:04d}.json", found.as_json())
    return found


def _score(step: int, found: Evaluation) -> str:
    matched = found.mean("cc_psnr")
    colours = "" if matched is None else f" ({matched:.2f} with colours matched)"
    psnr, ssim = found.mean("psnr"), found.mean("ssim")
    return f"step {step}: PSNR {psnr:.2f}{colours}  SSIM {ssim:.4f} on {len(found.images)} test images"
