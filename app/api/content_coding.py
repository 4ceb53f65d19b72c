"""Content coding: whether a client takes gzip. Pure."""


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the header Accept-Encoding allows gzip, by its weights; an absent header does not."""
    weights = dict(_coding(each) for each in accept_encoding.split(",") if each.strip())
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _coding(text: str) -> tuple[str, float]:
    """Return the name of a coding and its weight; 0 if the weight is not a number."""
    name, _, parameter = text.partition(";")
    key, _, value = parameter.partition("=")
    if key.strip().lower() != "q":
        return name.strip().lower(), 1.0
    try:
        return name.strip().lower(), float(value)
    except ValueError:
        return name.strip().lower(), 0.0
