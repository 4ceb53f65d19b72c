"""The part of the catalogue about exports beside the training. Pure."""

from millrace.consumers.metric import counter, gauge

EXPORTS = (
    counter("exports", "Versions published beside the training. Bad: it stands still for many times export.every."),
    counter("exports_refused", "Exports of which nothing was published. Bad: it grows; the events say why."),
    gauge("export_number", "The version that was published last. Bad: far behind millrace_checkpoint_number."),
    gauge("export_age_seconds", "Since a version was published. Bad: many times export.every; an old model is served."),
    gauge(
        "export_held_back_seconds",
        "How long export.only_if has held exports back; 0 where it does not. Bad: it grows; /status says what is "
        "missing.",
    ),
    gauge(
        "exports_unannounced",
        "Versions that are not on export.announce yet. Bad: above 0 for minutes; /status says why.",
    ),
)
