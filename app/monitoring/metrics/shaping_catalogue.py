"""The part of the catalogue about shaping: what is learnt where it differs from what came. Pure."""

from millrace.consumers.metric import gauge

SHAPING = (
    gauge(
        "class_share",
        "The share of the stream that each class of `balance` has. Bad: it moves away from what is known of the world.",
        "class",
    ),
    gauge(
        "class_learnt_share",
        "The share that the class has in what is learnt. Bad: far from balance.target for hours; the class does not "
        "come.",
        "class",
    ),
    gauge(
        "class_weight",
        "By what the updates of the class are multiplied. Bad: hundreds; single records then rule.",
        "class",
    ),
)
