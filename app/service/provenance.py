"""Where a checkpoint's state comes from: config, code, versions and cluster, by hash. No value, no secret."""

import hashlib
import json
import platform
from importlib.metadata import version
from typing import Any

from millrace.app.settings import Loaded
from millrace.app.settings.masking import masked
from millrace.app.version import version as own_version
from millrace.training.model.setup.model_code import beside_sha256, model_sha256


def provenance_of(loaded: Loaded, cluster_id: str | None) -> dict[str, Any]:
    """Return what stands as provenance in each manifest."""
    settings = loaded.settings
    # Masked first: a rotated password is not another config, and no hash of a manifest depends on a secret.
    config = json.dumps(masked(settings.model_dump(mode="json")), sort_keys=True)
    return {
        "millrace": own_version(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("tensorflow", "keras", "numpy")},
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "model_sha256": model_sha256(settings.model.build.file),
        # Those of which the hash above is made as well.
        **({"model_files": beside} if (beside := beside_sha256(settings.model.build.file)) else {}),
        "cluster_id": cluster_id,
        "topics": list(settings.kafka.topics),
        "group": settings.kafka.group,
    }
