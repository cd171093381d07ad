"""The page: what stands where, and what happens when something is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from hemnet.app import drawing
from hemnet.app.answers import Answers, Look, View, Wishes
from hemnet.app.explore import step_text
from hemnet.errors import UserError

TINT = 0.6  # of the classes over the picture at first; the style sheet's too

# A press on a sample, and on a place of the picture, as an event with what it needs.
PRESS_SAMPLE = """element.addEventListener('click', event => {
  const button = event.target.closest('button[data-sample]');
  if (button) trigger('click', {sample: Number(button.dataset.sample)});
});"""
PRESS_PICTURE = """element.addEventListener('click', event => {
  const stage = event.target.closest('.stage');
  if (!stage) return;
  const box = stage.getBoundingClientRect();
  trigger('click', {
    across: (event.clientX - box.left) / box.width,
    down: (event.clientY - box.top) / box.height,
  });
});"""
SET_TINT = """(value) => {
  document.querySelector('.gradio-container').style.setProperty('--tint', value);
  return [];
}"""


class Page:
    """Gradio's blocks around the answers."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.explorer = answers, answers.explorer
        unit = self.explorer.unit
        self.own = self.explorer.own.steps if unit is not None else (0.5,)
        self.several = "," in step_text(self.own)  # step sizes, one an iteration
        self.blocks = gr.Blocks(
            title="HEMNet explorer", analytics_enabled=False, delete_cache=(600, 86400)
        )
        with self.blocks:
            _html(drawing.header(self.explorer), elem_id="header")
            self._image_part()
            if unit is None:
                _html(drawing.note(self.explorer.why_no_unit), elem_id="no-unit")
            self._em_part(0 if unit is None else unit.bases.value.shape[0])
            self._connect()
        for block in self.blocks.blocks.values():
            _stay_home(block)
        # One computation at a time, and a queue that ends.
        self.blocks.queue(max_size=64, default_concurrency_limit=1, api_open=False)
        self.blocks.state_session_capacity = 200

    def _image_part(self) -> None:
        with gr.Row(equal_height=False, elem_id="image-part"):
            with gr.Column(scale=2, min_width=280):
                self.upload = gr.File(
                    label="Image",
                    file_types=["image"],
                    height=150,
                    elem_id="upload",
                )
                strip = drawing.sample_strip(self.answers.samples)
                self.strip = _html(strip, js_on_load=PRESS_SAMPLE, elem_id="samples")
                self.status = _html(drawing.note("Loading the first image …"), elem_id="status")
                self.opacity = gr.Slider(
                    0, 1, TINT, step=0.05, label="Opacity of the classes", elem_id="opacity"
                )
                self.download = gr.DownloadButton(
                    "Download class map", interactive=False, elem_id="download"
                )
            with gr.Column(scale=3, min_width=300):
                self.picture = _html(js_on_load=PRESS_PICTURE, min_height=220, elem_id="picture")
                self.legend = _html(elem_id="legend")
            with gr.Column(scale=2, min_width=280, elem_id="pixel"):
                _html(
                    "<h2>What explains a pixel?</h2>"
                    if self.explorer.unit is not None
                    else "<h2>What is a pixel?</h2>"
                )
                _html(drawing.note("Press on the picture, or type x and y (from the upper left)."))
                with gr.Row(elem_id="place"):
                    self.x = gr.Number(label="x", precision=0, min_width=70)
                    self.y = gr.Number(label="y", precision=0, min_width=70)
                    self.point = gr.Button("Explain", min_width=80, elem_id="explain")
                self.bars = _html(elem_id="bars")
                self.adopt = gr.Button(
                    "Show these bases below", size="sm", visible=False, elem_id="adopt"
                )

    def _em_part(self, bases: int) -> None:
        explorer, count = self.explorer, len(self.own)
        with gr.Column(visible=bases > 0, elem_id="em-part"):
            _html("<h2>Expectation-maximization, iteration by iteration</h2>")
            with gr.Row(equal_height=False):
                with gr.Column(scale=2, min_width=280):
                    self.shown = gr.Slider(
                        1, max(2, count), count, step=1, label="Iteration shown", elem_id="shown"
                    )
                    self.iterations = gr.Slider(
                        1, explorer.most_iterations, count, step=1, elem_id="iterations",
                        label="Iterations T",
                    )  # fmt: skip
                    self.step = gr.Slider(
                        0.01,
                        1,
                        float(self.own[0]),
                        step=0.01,
                        label="Step size η",
                        info="1 is plain EM" if explorer.has_steps else "EMANet's unit: always 1",
                        interactive=explorer.has_steps and not self.several,
                        elem_id="step",
                    )
                    self.keep = gr.Checkbox(
                        self.several,
                        label=f"The model's own step sizes: {step_text(self.own)}",
                        visible=self.several,
                        elem_id="keep",
                    )
                    self.reset = gr.Button("The model's own settings", size="sm", elem_id="reset")
                    self.bases = gr.Dropdown(
                        [(f"basis {k}", k) for k in range(1, bases + 1)],
                        multiselect=True,
                        max_choices=12,
                        label="Bases shown",
                        info="at first the most distinct",
                        elem_id="bases",
                    )
                with gr.Column(scale=4, min_width=300):
                    self.maps = _html(elem_id="maps")
                with gr.Column(scale=3, min_width=300):
                    _html("<h3>The likelihood bound</h3>")
                    self.chart = _html(elem_id="chart")

    def _connect(self) -> None:
        private: dict[str, Any] = {"api_visibility": "private"}
        quick = private | {"show_progress": "hidden", "trigger_mode": "always_last"}
        controls: list[Any] = [self.iterations, self.step, self.keep, self.shown]
        values: list[Any] = [*controls, self.bases, self.x, self.y]
        drawn: list[Any] = [self.maps, self.chart, self.bars, self.adopt]
        asked: set[Any] = set(values)  # as one dictionary
        everything = [
            *(self.status, self.upload, self.picture, self.legend, self.download),
            *(*values, *drawn),
        ]
        seeing = private | {"outputs": everything, "show_progress_on": [self.picture]}
        self.blocks.load(self.first, **seeing)
        self.strip.click(self.sample, **seeing)
        self.upload.upload(self.file, self.upload, **seeing)
        self.blocks.unload(self.leave)
        self.opacity.input(None, self.opacity, None, js=SET_TINT)
        for setting in (self.iterations, self.step, self.keep):
            setting.input(self.solve, asked, [self.step, self.shown, *drawn], **quick)
        for control in (self.shown, self.bases):
            control.input(self.explain, asked, drawn, **quick)
        self.point.click(self.explain, asked, drawn, **quick)
        for field in (self.x, self.y):
            field.submit(self.explain, asked, drawn, **quick)
        self.picture.click(self.press, asked, [self.x, self.y, *drawn], **quick)
        self.adopt.click(self.take, asked, [self.bases, *drawn], **quick)
        self.reset.click(self.back, asked, [*controls, *drawn], **quick)

    # A new image: all outputs; after a mistake only the message, and the rest stays as it is.

    def first(self, request: gr.Request) -> dict[Any, Any]:
        return self._see(lambda: self.answers.sample(request.session_hash, 0))

    def sample(self, request: gr.Request, event: gr.EventData) -> dict[Any, Any]:
        number = _given(event, "sample")
        return self._see(lambda: self.answers.sample(request.session_hash, number))

    def file(self, path: str | None, request: gr.Request) -> dict[Any, Any]:
        return self._see(lambda: self.answers.file(request.session_hash, path))

    def leave(self, request: gr.Request) -> None:
        self.answers.sessions.end(request.session_hash)

    def _see(self, look: Callable[[], Look]) -> dict[Any, Any]:
        try:
            found = look()
        except UserError as error:
            return {self.status: drawing.trouble(error), self.upload: None}
        return {
            self.status: found.status,
            self.upload: None,  # ready for the next one
            self.picture: found.stage,
            self.legend: found.legend,
            self.download: gr.update(value=str(found.class_map), interactive=True),
            self.x: found.place[0],
            self.y: found.place[1],
            self.bases: list(found.view.bases),
            **self._own_settings(),
            **self._drawn(found.view),
        }

    # The EM of the user's image. `asked` has the value of every control.

    def explain(self, asked: dict[Any, Any], request: gr.Request) -> dict[Any, Any]:
        return self._answer(lambda: self._drawn(self._view(asked, request)))

    def solve(self, asked: dict[Any, Any], request: gr.Request) -> dict[Any, Any]:
        """After a change of T or η the slider of iterations follows."""

        def answer() -> dict[Any, Any]:
            view = self._view(asked, request)
            last = 1 if view.solution is None else view.solution.iterations
            free = self.explorer.has_steps and not asked[self.keep]
            return {
                self.step: gr.update(interactive=free),
                self.shown: gr.update(maximum=max(2, last), value=view.shown),
                **self._drawn(view),
            }

        return self._answer(answer)

    def press(
        self, asked: dict[Any, Any], request: gr.Request, event: gr.EventData
    ) -> dict[Any, Any]:
        """A place of the picture, as shares of its width and height."""

        def answer() -> dict[Any, Any]:
            size = self.answers.size(request.session_hash)
            shares = _given(event, "across"), _given(event, "down")
            if not all(isinstance(share, float | int) and 0 <= share <= 1 for share in shares):
                raise UserError("this place lies outside the picture: press on the picture.")
            x, y = (min(int(s * n), n - 1) for s, n in zip(shares, size, strict=True))
            view = self._view(asked | {self.x: x, self.y: y}, request)
            return {self.x: x, self.y: y, **self._drawn(view)}

        return self._answer(answer)

    def take(self, asked: dict[Any, Any], request: gr.Request) -> dict[Any, Any]:
        """The bases that explain the pixel become those shown."""

        def answer() -> dict[Any, Any]:
            bases = list(self._view(asked, request).listed)
            view = self._view(asked | {self.bases: bases}, request)
            return {self.bases: bases, **self._drawn(view)}

        return self._answer(answer)

    def back(self, asked: dict[Any, Any], request: gr.Request) -> dict[Any, Any]:
        """The model's own settings."""
        own = {self.iterations: None, self.step: None, self.shown: None}
        return self._answer(
            lambda: self._own_settings() | self._drawn(self._view(asked | own, request))
        )

    def _view(self, asked: dict[Any, Any], request: gr.Request) -> View:
        x, y = asked[self.x], asked[self.y]
        if (x is None) != (y is None):
            raise UserError("a pixel has two coordinates: give both x and y.")
        wishes = Wishes(
            asked[self.iterations],
            None if asked[self.keep] else asked[self.step],
            asked[self.shown],
            asked[self.bases] or [],
            None if x is None else (x, y),
        )
        return self.answers.view(request.session_hash, wishes)

    def _own_settings(self) -> dict[Any, Any]:
        count = len(self.own)
        return {
            self.iterations: count,
            self.step: gr.update(
                value=float(self.own[0]), interactive=self.explorer.has_steps and not self.several
            ),
            self.keep: self.several,
            self.shown: gr.update(value=count, maximum=max(2, count)),
        }

    def _drawn(self, view: View) -> dict[Any, Any]:
        return {
            self.maps: view.maps,
            self.chart: view.chart,
            self.bars: view.bars,
            self.adopt: gr.update(visible=bool(view.listed)),
        }

    def _answer(self, answer: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
        try:
            return answer()
        except UserError as error:
            return {self.bars: drawing.trouble(error)}


def _html(value: str = "", **options: Any) -> gr.HTML:
    """Styled by our style sheet alone."""
    return gr.HTML(value, apply_default_css=False, **options)


def _stay_home(block: Any) -> None:
    """Gradio fetches what a request names by an address, of any size: here it does not."""
    fetch = block.async_move_resource_to_block_cache

    async def only_files(place: Any) -> Any:
        if isinstance(place, str) and "://" in place:
            raise UserError("files are uploaded, not fetched from an address.")
        return await fetch(place)

    block.async_move_resource_to_block_cache = only_files


def _given(event: gr.EventData, name: str) -> Any:
    """What the page sent with an event; None where it did not."""
    try:
        return getattr(event, name)
    except (AttributeError, KeyError):
        return None
