"""The training loop.

Whatever happens in step s is a function of the configuration, the state before it and s: the
images, their augmentation, dropout and learning rate. So a checkpoint needs no more than weights,
optimizer and a few numbers, and a run that was killed ends as one that never was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import distributed

from hemnet.data import Batch
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate, guessed
from hemnet.inference.metrics import Evaluation
from hemnet.inference.open_model import load_model
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import em_units
from hemnet.run_folder import RunFolder
from hemnet.training import setup
from hemnet.training.accelerator import computing, summed
from hemnet.training.checkpoints import Checkpoints, Progress
from hemnet.training.config import TrainConfig, check_config
from hemnet.training.config_parser import decisive
from hemnet.training.depthwise import keep_depthwise_in_float32
from hemnet.training.display import Display, Meter
from hemnet.training.distributed import check_alike
from hemnet.training.loss import SegmentationLoss
from hemnet.training.memory import passes
from hemnet.training.optim import FALLS, check_optimizer, lr_at, make_optimizer
from hemnet.training.resume import (
    check_folder,
    locked,
    report_last_checkpoint,
    resumed_choices,
    write_config,
)
from hemnet.training.run_log import RunLog, check_wandb, write_environment
from hemnet.training.setup import Datasets
from hemnet.training.signals import Stopped, StopSignals
from hemnet.training.step import TrainingStep, check_finite
from hemnet.training.summary import look, opening, padding_note, resolved_loss
from hemnet.training.weight_average import AveragedWeights

log = logging.getLogger("hemnet")

REFRESH = 20  # seconds after which the page of a run that trains is read again
Report = Callable[..., object]  # write_report(run, data set, evaluation, refresh=seconds)


@dataclass(frozen=True)
class TrainResult:
    """A run that has ended or was stopped."""

    folder: Path
    step: int
    finished: bool
    stopped_by: int | None  # number of the signal
    miou: float | None  # of the last validation
    best_miou: float | None
    best_step: int
    main: bool  # of several processes, the one that speaks

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, of the kinds "train" and "validation"."""
        return RunFolder(self.folder).read_metrics()

    @property
    def model(self) -> Segmenter:
        """The trained model: the best, or the last where the configuration says so."""
        return load_model(self.folder)


def train(
    config: TrainConfig,
    out: str | Path,
    resume: bool = False,
    *,
    allow_changes: bool = False,
    quiet: bool = False,
    data: Datasets | None = None,
    prepare: Callable[[Segmenter], object] | None = None,
    report: Report | None = None,
) -> TrainResult:
    """Train a model in the run folder `out`; with `resume` go on where the folder's run was.

    A folder that holds a run is not overwritten, and a run is resumed with its own configuration
    only, unless `allow_changes`. `data` are the configuration's data sets where the caller has
    them open already; `prepare` is called with the model before the first step, `report` after
    each validation but the last, where the configuration asks for a live report.
    """
    check_config(config)
    check_wandb(config)
    check_optimizer(config.optim)
    asked, config = config.optim.warmup, setup.settle(config)
    if config.optim.warmup != asked:
        log.warning(
            "optim.warmup %d does not fit into %d steps: the rate rises over the first %d", asked,
            config.optim.steps, config.optim.warmup,
        )  # fmt: skip
    folder = RunFolder(out)
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        accelerator = stack.enter_context(computing(config.run))
        if accelerator.is_main_process:  # which alone writes
            stack.enter_context(locked(folder))
        stack.enter_context(report_last_checkpoint(folder))
        if resume:
            config = resumed_choices(config, folder)
        if accelerator.is_main_process:
            check_folder(config, folder, resume, allow_changes)
        run = Trainer(config, folder, accelerator, signals, quiet=quiet, data=data, report=report)
        if prepare is not None:
            prepare(run.model)
        try:
            return run.go()
        finally:
            run.close()


class Trainer:
    """A run and all it holds; `progress` is what a checkpoint remembers beside the tensors."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        accelerator: Accelerator,
        signals: StopSignals,
        *,
        quiet: bool,
        data: Datasets | None = None,
        report: Report | None = None,
    ) -> None:
        self.config, self.folder, self.signals = config, folder, signals
        self.report = report
        self.accelerator, self.device = accelerator, accelerator.device
        self.main, self.world = accelerator.is_main_process, accelerator.num_processes
        if config.optim.accumulate != "auto":
            setup.share_of_batch(config, self.world)  # refused early if there is none

        self.dataset, self.val = data or setup.open_datasets(config.data)
        self.fit = ""
        if config.optim.accumulate == "auto":
            classes = self.dataset.num_classes
            count, self.fit = passes(config, classes, self.world, self.device)
            # All processes take the same steps: as many as the one with the least memory needs.
            found = torch.tensor([count], device=self.device)
            count = int(accelerator.gather(found).max())
            config = replace(config, optim=replace(config.optim, accumulate=count))
        self.survey = look(config, self.dataset)
        self.config = config = replace(
            config, loss=resolved_loss(config.loss, self.dataset, self.survey)
        )
        self.model = setup.build_model(config, self.dataset.info)
        if self.device.type == "cpu" and config.run.precision == "bf16":
            keep_depthwise_in_float32(self.model)
        self.loss = SegmentationLoss(config.loss, self.dataset.num_classes).to(self.device)
        self.model.to(self.device)
        if self.world > 1 and self.device.type == "cuda":
            setup.synchronise_norms(self.model)
        elif self.world > 1 and not config.model.freeze_norm:
            log.warning(
                "batch norms see the images of one process only, since torch cannot synchronise "
                "them on a CPU: model.freeze_norm avoids the difference"
            )
        self.optimizer = make_optimizer(self.model, config.optim)
        decay = config.optim.ema_decay
        self.average = None if decay is None else AveragedWeights(self.model, decay)
        self.averaged = None if self.average is None else self.average.module
        self.judged = self.averaged or self.model  # what is validated and offered to others

        self.checkpoints = Checkpoints(
            folder, validates=self.val is not None, keep=config.validation.keep
        )
        self._saved = self._restored = -1
        self.best: Evaluation | None = None
        self.progress = self._restore()
        self._check_alike()
        if config.run.compile:
            self.model.compile()
        # Not the data: its batches already know their process, and resume anywhere.
        self.step = TrainingStep(self.model, self.loss, self.optimizer, config, accelerator)
        self.loss_sum = torch.tensor(self.progress.loss_sum, device=self.device)
        self.log = RunLog(folder, config, self.progress.step) if self.main else None
        self.meter = Meter()
        self.display = Display(
            config.optim.steps,
            self.progress.step,
            config.optim.batch_size,
            every=0 if self.val is None else config.validation.every,
            quiet=quiet or not self.main,
        )
        self.display.miou = self.progress.last_miou
        if self.progress.step == 0:
            self._open()

    def _open(self) -> None:
        """Says what is about to be done."""
        lines = opening(self.config, self.dataset, self.val, self.survey, self.model, self.device)
        for line in lines:
            self.display.say(line)
        if self.fit:
            self.display.say(f"memory    {self.fit}")
        note = padding_note(self.config.data, self.survey)
        if note is not None and self.main:
            log.warning("%s", note)

    def go(self) -> TrainResult:
        stopped = False
        batches: Iterator[Batch] | None = None
        while True:
            if self._validation_due():
                stopped = not self._validate()
            if stopped or self._ended():
                break
            if batches is None:
                batches = iter(
                    setup.build_batches(
                        self.config, self.dataset, self.model, self.progress.step, self.accelerator
                    )
                )
            stopped = not self._step(batches)
            if stopped:
                break
            self._log()
            step = self.progress.step
            if step % self.config.run.checkpoint_every == 0 and not self._validation_due():
                self._save()
        if self._saved != self.progress.step or stopped:
            self._save()
        return self._result(stopped)

    def _ended(self) -> bool:
        progress = self.progress
        return progress.step >= self.config.optim.steps or progress.falls >= FALLS

    def _step(self, batches: Iterator[Batch]) -> bool:
        """One change of the weights; False when a signal came instead."""
        progress, optim = self.progress, self.config.optim
        with self.meter.waiting():
            parts = self.step.draw(batches)
        total, stop = self._agree(self.step.total(parts), self.signals.requested is not None)
        if stop:
            return False

        step_loss = self.step.backward(progress.step, parts, total)
        if self.device.type == "cpu":  # elsewhere it would make the device wait
            check_finite(step_loss, progress.step)
        self._update(lr_at(progress.step, optim, progress.falls))
        if self.average is not None:
            self.average.update(self.model, progress.step)
        self.loss_sum += step_loss
        progress.step += 1
        progress.loss_steps += 1
        self.meter.add(optim.batch_size)
        self.display.step(progress.step)
        return True

    def _update(self, lr: float) -> None:
        """Change the weights; the first time shows whether the restored optimizer is whole."""
        try:
            self.step.update(lr)
        except (KeyError, RuntimeError) as error:
            if self.progress.step != self._restored:
                raise
            raise UserError(
                f"{self.checkpoints.last} does not fit this optimizer ({error}). Resume with the "
                "run's own configuration"
            ) from error

    def _agree(self, total: float, stop: bool) -> tuple[float, bool]:
        """The sum of all processes' totals, and whether any was told to stop."""
        if self.world == 1:
            return total, stop
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        both = summed(torch.tensor([total, float(stop)], dtype=dtype, device=self.device))
        return float(both[0]), bool(both[1] > 0)

    def _log(self) -> None:
        progress, run = self.progress, self.config.run
        if progress.step % run.log_every and progress.step != self.config.optim.steps:
            return
        mean = check_finite(self.loss_sum, progress.step - 1) / progress.loss_steps
        self.loss_sum.zero_()
        progress.loss_steps = 0
        rate = lr_at(progress.step - 1, self.config.optim, progress.falls)
        speed = self.meter.read()
        values: dict[str, Any] = {"loss": mean, "rate": rate, **speed}
        # Due since the last line of the log, which may be written at other steps.
        if progress.step % run.health_every < run.log_every:
            health = self._health()
            values |= {"health": health} if health else {}
        if self.log is not None:
            self.log.write("train", progress.step, **values)
        self.display.line(progress.step, mean, rate, speed)
        self.meter.reset()

    def _health(self) -> dict[str, float]:
        for unit in em_units(self.model)[:1]:
            return {k: v for k, v in asdict(unit.health()).items() if k != "bases"}
        return {}

    @cached_property
    def baseline(self) -> Evaluation | None:
        """What the validation data's own guess reaches."""
        return None if self.val is None else guessed(self.val)

    def _validation_due(self) -> bool:
        step, every = self.progress.step, self.config.validation.every
        due = step == self.config.optim.steps or (step > 0 and step % every == 0)
        return due and self.val is not None and self.progress.validated < step

    def _validate(self) -> bool:
        """Judge the model and keep it if it is the best; False when a signal came meanwhile."""
        assert self.val is not None
        progress, start = self.progress, time.perf_counter()
        if self.world > 1:  # batch norms' statistics: what is judged is what the first one saves
            for buffer in self.judged.buffers():
                distributed.broadcast(buffer, 0)
        # Alone, validation can be dropped and done again. Processes would not agree when.
        droppable = self.signals.immediately() if self.world == 1 else nullcontext()
        try:
            with self.meter.paused(), self.display.away(), droppable:
                found = evaluate(
                    self.judged,
                    self.val,
                    self.config.validation,
                    workers=self.config.data.workers,
                    device=self.device,
                    progress="validating" if self.display.live else None,
                )
        except Stopped:
            return False
        self.display.validation_seconds = time.perf_counter() - start
        self.display.miou = found.miou
        progress.validate(found.miou)
        if progress.is_best:
            self.best = found
        if self.log is not None:
            self.log.write(
                "validation",
                progress.step,
                miou=found.miou,
                iou=found.iou,
                pixel_accuracy=found.pixel_accuracy,
                seconds=round(time.perf_counter() - start, 3),
                saved=progress.is_best or self.checkpoints.follows_last,  # in model/
            )
        mark = " (best)" if progress.is_best else ""
        beside = ""
        if self.main and self.baseline is not None:
            known = self.baseline
            beside = f"   (baseline: {known.miou:.2f} and {known.pixel_accuracy:.2f})"
        self.display.say(
            f"step {progress.step}: mIoU {found.miou:.2f}{mark}, pixel accuracy "
            f"{found.pixel_accuracy:.2f}{beside}"
        )
        self._note_plateau()
        self._save()
        self._report()
        return True

    def _note_plateau(self) -> None:
        """Lets the rate fall where mIoU has not risen for long; the last time ends the run."""
        patience, progress = self.config.optim.plateau_patience, self.progress
        if patience is None:
            return
        since = progress.step - max(progress.best_step, progress.fell_at)
        if since < patience * self.config.validation.every:
            return
        progress.falls, progress.fell_at = progress.falls + 1, progress.step
        rate = lr_at(progress.step, self.config.optim, progress.falls)
        then = "this ends the run" if self._ended() else f"the rate falls to {rate:.2g}"
        self.display.say(
            f"step {progress.step}: no better mIoU than {progress.best_miou:.2f} of step "
            f"{progress.best_step}: {then}"
        )

    def _report(self) -> None:
        """The page of the run so far; that of its end is for whoever started it."""
        if self.report is None or not self.main or self.display.quiet or self._ended():
            return
        # Evaluating a part again, for want of an evaluation, would wait for the other processes.
        alone = self.world == 1 or self.best is not None
        if not (self.config.run.live_report and alone):
            return
        with self.meter.paused(), self.display.away():
            try:
                self.report(self.folder.path, self.val, self.best, refresh=REFRESH)
            except (UserError, OSError, RuntimeError) as error:  # of a page nobody may look at
                log.warning("the report could not be written: %s", error)

    def _save(self) -> None:
        progress = self.progress
        # Of all processes: when resumed, the first one has it alone.
        progress.loss_sum = check_finite(self.loss_sum, progress.step - 1)
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise UserError(
                f"the weights are no longer finite at step {progress.step}: the training has "
                "diverged. Try a lower optim.lr, optim.warmup or optim.clip"
            )
        if self.accelerator.scaler is not None:
            progress.scaler = self.accelerator.scaler.state_dict()
        if self.log is not None:
            with self.meter.paused():
                self.log.sync()
                self.checkpoints.save(self.model, self.optimizer, progress, self.averaged)
        self._saved = progress.step
        self.accelerator.wait_for_everyone()

    def _restore(self) -> Progress:
        """The state of the last checkpoint, or of a run that begins."""
        if self.main:
            write_config(self.config, self.folder)
        progress = self.checkpoints.load(self.model, self.optimizer, self.averaged)
        if progress is None:
            if self.main:
                write_environment(self.folder, self.device, self.world)
            return Progress(processes=self.world)
        self._saved = self._restored = progress.step
        if self.accelerator.scaler is not None and progress.scaler:
            self.accelerator.scaler.load_state_dict(progress.scaler)
        if progress.processes != self.world:
            log.warning(
                "the run had %d processes and now has %d: it goes on with the same images, but "
                "ends with other rounding", progress.processes, self.world,
            )  # fmt: skip
        if self.main:
            self.checkpoints.repair(self.judged, progress)
        else:
            progress.loss_sum = 0.0
        progress.processes = self.world
        return progress

    def _check_alike(self) -> None:
        """A machine may have another file, other images, or a run folder of its own."""
        check_alike(
            {
                **decisive(self.config),
                "the number of training images": len(self.dataset),
                "the number of validation images": len(self.val or ()),
                "the step of the run folder": self.progress.step,
            }
        )

    def _result(self, stopped: bool) -> TrainResult:
        p = self.progress
        signal = self.signals.requested
        return TrainResult(
            self.folder.path,
            p.step,
            self._ended() and not stopped,
            int(signal) if stopped and signal is not None else None,
            p.last_miou,
            p.best_miou,
            p.best_step,
            main=self.main,
        )

    def close(self) -> None:
        self.display.close()
        if self.log is not None:
            self.log.close()
