"""Where a checkpoint's state comes from: config, code, versions and cluster, by hash, and the settings that change it.

Values that may be secrets are masked, as they are wherever settings are shown.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from millrace.app.settings import Loaded, Settings
from millrace.app.settings.environment import of_libraries
from millrace.app.settings.record_fields import OneLabelSettings
from millrace.app.settings.renamed import RENAMED
from millrace.app.settings.secret_files import masked
from millrace.app.settings.spelling import dotted
from millrace.app.version import version as own_version
from millrace.app.version import version_of
from millrace.training.model.hyperparameters import HyperparameterOptions, OnChange
from millrace.training.model.setup.model_code import beside_sha256, model_sha256

_TRAINING = (
    "batch_size",
    "passes",
    "memory",
    "batches_per_call",
    "max_wait",
    "partial_batches",
    "shuffle",
    "deterministic",
    "seed",
)
_MODEL = ("build", "preprocess", "augment")
_RECORDS = ("label", "weight", "event_time")
_EXAMPLE = "example"


def provenance_of(loaded: Loaded, cluster_id: str | None) -> dict[str, Any]:
    """Return what stands as provenance in each manifest."""
    settings, form = loaded.settings, loaded.settings.records.format
    # Masked first: a rotated password is not another config, and no hash of a manifest depends on a secret.
    dumped = settings.model_dump(mode="json")
    dumped["training"] |= asdict(settings.training.numbers)
    config = json.dumps(masked(dumped), sort_keys=True)
    return {
        "millrace": own_version(),
        "python": platform.python_version(),
        **{package: version_of(package) for package in ("tensorflow", "keras", "numpy")},
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "model_sha256": model_sha256(settings.model.build.file),
        # Those of which the hash above is made as well.
        **({"model_files": beside} if (beside := beside_sha256(settings.model.build.file)) else {}),
        **({} if isinstance(form, str) else {"format_sha256": model_sha256(form.file)}),
        "cluster_id": cluster_id,
        "topics": list(settings.kafka.topics),
        "group": settings.kafka.group,
    }


def proven_with(loaded: Loaded) -> dict[str, Any]:
    """Return what the proof of a model depends on and the model does not show: config, code, versions, environment."""
    return {**provenance_of(loaded, None), "environment": of_libraries()}


def hyperparameter_options(settings: Settings) -> HyperparameterOptions:
    """Return the settings that change what is learnt, and which side is in force where a restore finds others.

    A checkpoint records them by name, so that no change is silent.
    """
    shaping = {name: section.used for name, section, _ in settings.shapings() if section.is_recorded}
    values = masked(settings.model_dump(mode="json", include={"training", "model", "records", *shaping}))
    training = {**values["training"], **asdict(settings.training.numbers)}
    model, records = values["model"], values["records"]
    form, label = settings.records.format, records["label"]
    if label is None or isinstance(settings.records.label, OneLabelSettings):
        label = _field(label)
    else:
        label = {name: _field(one) for name, one in label.items()}
    return HyperparameterOptions(
        settings={
            **{f"training.{name}": training[name] for name in _TRAINING},
            # Only where it is, so that checkpoints from before it show no change.
            **({"training.rows": training["rows"]} if training["rows"] != "apart" else {}),
            **({f"training.members.{name}": value for name, value in (training["members"] or {}).items()}),
            **{f"model.{name}": model[name] for name in _MODEL},
            **{f"model.args.{name}": value for name, value in model["args"].items()},
            "model.sha256": model_sha256(settings.model.build.file)[:12],
            **{
                f"{section}.{name}": value
                for section, used in shaping.items()
                if used
                for name, value in values[section].items()
                # What only watches changes nothing that is learnt.
                if (section, name) != ("labels", "score_on_arrival")
            },
            **{f"records.{name}": records[name] for name in _RECORDS},
            **({} if isinstance(form, str) else {"records.format.sha256": model_sha256(form.file)[:12]}),
            **{f"records.where.{place}": condition for place, condition in records["where"].items()},
            "records.label": label,
            **{f"records.features.{name}": _field(value) for name, value in records["features"].items()},
        },
        on_change=OnChange(settings.training.on_hyperparameter_change),
        renamed={dotted(old): dotted(new) for old, new in RENAMED.items()},
    )


def _field(value: Any) -> Any:
    """Return a field without its examples, which no record is learnt from."""
    if not isinstance(value, Mapping) or _EXAMPLE not in value:
        return value
    kept = {key: inside for key, inside in value.items() if key != _EXAMPLE}
    # As the settings write a field of which nothing else is set.
    return kept["dtype"] if kept.keys() == {"dtype"} else kept
