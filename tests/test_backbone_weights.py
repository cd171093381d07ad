"""Backbone weights: from timm, and from local files that may be damaged or hostile."""

from __future__ import annotations

import contextlib
import logging
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hemnet.errors import UserError
from hemnet.models.registry import create_model
from hemnet.nn.backbone import Backbone
from hemnet.nn.backbone_weights import load_weights


class TestImageNetWeights:
    def test_come_from_timm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def without_network(name: str, pretrained: bool, **options: Any) -> nn.Module:
            asked.append((name, pretrained))
            return original(name, **options)

        original = timm.create_model
        monkeypatch.setattr(timm, "create_model", without_network)
        create_model("fcn", 2, "test_resnet", weights="imagenet")
        assert set(asked) == {("test_resnet", True)}

    def test_that_cannot_be_had_are_an_error(self) -> None:
        with pytest.raises(UserError, match="cannot fetch the weights of 'test_resnet'"):
            create_model("fcn", 2, "test_resnet", weights="imagenet")  # the tests are offline
        with pytest.raises(UserError, match="timm has no weights for 'regnetz_005'"):
            create_model("fcn", 2, "regnetz_005", weights="imagenet")


class TestWeightFiles:
    @pytest.fixture
    def network(self) -> nn.Module:
        return Backbone("test_resnet", 32).network

    @pytest.fixture
    def state(self) -> dict[str, Tensor]:
        torch.manual_seed(1)
        return timm.create_model("test_resnet").state_dict()

    def same(self, network: nn.Module, state: dict[str, Tensor]) -> bool:
        return all(torch.equal(v, state[k]) for k, v in network.state_dict().items())

    def test_says_in_one_line_what_matched(
        self,
        network: nn.Module,
        state: dict[str, Tensor],
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        save_file(state, tmp_path / "w.safetensors")
        with caplog.at_level(logging.INFO, "hemnet"):
            report = load_weights(network, tmp_path / "w.safetensors")
        assert self.same(network, state)
        (line,) = caplog.messages
        assert line == str(report)
        assert f"{report.matched} of {report.matched} backbone tensors loaded" in line
        assert "not needed: fc.bias, fc.weight" in line
        assert caplog.records[0].levelno == logging.INFO

    def test_a_part_missing_is_a_warning(
        self,
        network: nn.Module,
        state: dict[str, Tensor],
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        del state["bn1.weight"]
        save_file(state, tmp_path / "w.safetensors")
        load_weights(network, tmp_path / "w.safetensors")
        assert "missing in the file: bn1.weight" in caplog.messages[0]

    def test_half_precision_files_fill_float32(
        self, network: nn.Module, state: dict[str, Tensor], tmp_path: Path
    ) -> None:
        half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
        save_file(half, tmp_path / "w.safetensors")
        load_weights(network, tmp_path / "w.safetensors")
        assert self.same(network, {k: v.float() for k, v in half.items()})
        assert next(network.parameters()).dtype == torch.float32

    @pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
    @pytest.mark.parametrize("prefix", ["", "module.", "module.backbone."])
    def test_pth_files_with_wrappers_and_prefixes(
        self,
        network: nn.Module,
        state: dict[str, Tensor],
        tmp_path: Path,
        wrapper: str | None,
        prefix: str,
    ) -> None:
        content = {prefix + k: v for k, v in state.items()}
        torch.save({wrapper: content, "epoch": 3} if wrapper else content, tmp_path / "w.pth")
        load_weights(network, tmp_path / "w.pth")
        assert self.same(network, state)

    def test_flattened_names_of_timms_feature_networks(self, tmp_path: Path) -> None:
        whole = timm.create_model("test_convnext")
        save_file(whole.state_dict(), tmp_path / "w.safetensors")
        network = Backbone("test_convnext", 32).network
        assert not load_weights(network, tmp_path / "w.safetensors").missing

    def test_normalisation_goes_with_the_model(
        self, state: dict[str, Tensor], tmp_path: Path
    ) -> None:
        path = tmp_path / "w.safetensors"
        save_file(state, path, metadata={"mean": "[0.1, 0.2, 0.3]", "std": "[0.4, 0.5, 0.6]"})
        model = create_model("fcn", 2, "test_resnet", weights=path)
        assert model.config.mean == (0.1, 0.2, 0.3)
        assert model.config.std == (0.4, 0.5, 0.6)
        save_file(state, path)
        assert create_model("fcn", 2, "test_resnet", weights=path).config.mean == (0.5, 0.5, 0.5)
        chosen = create_model("fcn", 2, "test_resnet", weights=path, mean=(0, 0, 0))
        assert chosen.config.mean == (0, 0, 0)

    def refuse(self, network: nn.Module, path: Path, message: str) -> None:
        before = {k: v.clone() for k, v in network.state_dict().items()}
        with pytest.raises(UserError, match=message):
            load_weights(network, path)
        assert self.same(network, before)

    def test_other_networks_are_refused(
        self, network: nn.Module, state: dict[str, Tensor], tmp_path: Path
    ) -> None:
        save_file({"blocks.0.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
        self.refuse(network, tmp_path / "other.safetensors", "none of its 1 tensors")
        wider = state | {"layer4.0.bn1.weight": torch.zeros(7)}
        save_file(wider, tmp_path / "wider.safetensors")
        self.refuse(
            network, tmp_path / "wider.safetensors", r"layer4.0.bn1.weight has shape \(7,\)"
        )

    @pytest.mark.filterwarnings("ignore")  # torch's own, of kinds that are on their way out
    @pytest.mark.parametrize("kind", ["sparse", "csr", "meta", "quantised", "complex"])
    def test_tensors_without_plain_values_are_refused(
        self, kind: str, network: nn.Module, state: dict[str, Tensor], tmp_path: Path
    ) -> None:
        name = next(iter(state))
        plain = state[name]
        state[name] = {
            "sparse": lambda: plain.to_sparse(),
            "csr": lambda: plain.flatten(1).to_sparse_csr(),
            "meta": lambda: plain.to("meta"),
            "quantised": lambda: torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
            "complex": lambda: plain.to(torch.complex64),
        }[kind]()
        torch.save(state, tmp_path / "x.pth")
        self.refuse(network, tmp_path / "x.pth", name)

    def test_every_damage_of_a_pth_file_is_a_message(
        self, network: nn.Module, state: dict[str, Tensor], tmp_path: Path
    ) -> None:
        rng = random.Random(0)
        for old in (False, True):
            torch.save(
                {k: state[k] for k in list(state)[:4]},
                tmp_path / "good.pth",
                _use_new_zipfile_serialization=not old,
            )
            content = (tmp_path / "good.pth").read_bytes()
            for _ in range(60):
                damaged = bytearray(content)
                for _ in range(rng.randrange(1, 6)):  # the head is where the names and shapes are
                    damaged[rng.randrange(min(len(damaged), 900))] = rng.randrange(256)
                (tmp_path / "x.pth").write_bytes(damaged)
                with contextlib.suppress(UserError):
                    load_weights(network, tmp_path / "x.pth")

    def test_damaged_and_hostile_files_are_refused(
        self, network: nn.Module, state: dict[str, Tensor], tmp_path: Path
    ) -> None:
        good = tmp_path / "good.safetensors"
        save_file(state, good)
        torch.save(state, tmp_path / "good.pth")
        for suffix in ("safetensors", "pth"):
            content = (tmp_path / f"good.{suffix}").read_bytes()
            for length in (0, 5, 100, len(content) // 2):
                (tmp_path / f"cut.{suffix}").write_bytes(content[:length])
                self.refuse(network, tmp_path / f"cut.{suffix}", "damaged")
        marker = tmp_path / "executed"
        (tmp_path / "evil.pth").write_bytes(pickle.dumps(_Evil(marker), protocol=2))
        torch.save(_Evil(marker), tmp_path / "evil.pt")
        (tmp_path / "evil.safetensors").write_bytes(pickle.dumps(_Evil(marker)))
        for name in ("evil.pth", "evil.pt", "evil.safetensors"):
            self.refuse(network, tmp_path / name, "refused|damaged")
        assert not marker.exists()
        state["bn1.weight"][0] = float("nan")
        save_file(state, good)
        self.refuse(network, good, "bn1.weight holds values that are not finite")
        torch.save([1, 2], tmp_path / "list.pth")
        self.refuse(network, tmp_path / "list.pth", "not tensors by name")
        self.refuse(network, tmp_path / "missing.pth", "there is no weight file")
        (tmp_path / "w.h5").touch()
        self.refuse(network, tmp_path / "w.h5", "must end in .safetensors")


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_weights_of_another_network_are_refused_unless_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stem fits by accident: 4 of 75 tensors would be loaded, and training would begin."""
    torch.manual_seed(0)
    network = timm.create_model("resnet18", features_only=True)
    state = {k: v for k, v in network.state_dict().items() if "num_batches" not in k}
    few = dict(list(state.items())[:5])
    save_file(few, tmp_path / "w.safetensors")
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with pytest.raises(UserError, match=r"has 5 of this backbone's 100 .*another network"):
        load_weights(network, tmp_path / "w.safetensors")
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert load_weights(network, tmp_path / "w.safetensors", partial=True).matched == 5
    arguments = {"backbone": "resnet18", "output_stride": 16, "channels": 16}
    with pytest.raises(UserError, match="partial_weights"):
        create_model("fcn", 2, "resnet18", 16, None, tmp_path / "w.safetensors")
    model = create_model(
        "hemnet", 2, weights=tmp_path / "w.safetensors", partial_weights=True, **arguments
    )
    assert model.weights_report is not None
    assert model.weights_report.matched == 5
