"""Help texts that name what the registries hold."""

from __future__ import annotations

import argparse
import textwrap


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Puts the names of all models and data sets for `{models}` and `{datasets}`.

    Only when help is printed: the registries import torch, which takes seconds.
    """

    def _format_text(self, text: str) -> str:
        if "{models}" in text:
            from hemnet.models import list_models

            text = text.replace("{models}", _listed(list_models()))
        if "{datasets}" in text:
            from hemnet.data import list_datasets

            text = text.replace("{datasets}", _listed(list_datasets()))
        return super()._format_text(text)


def _listed(names: list[str]) -> str:
    return textwrap.fill(", ".join(names), 90, subsequent_indent="  ")
