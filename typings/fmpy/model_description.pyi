"""The description of a unit."""

class ScalarVariable:
    name: str
    valueReference: int
    causality: str
    start: str | None

class ModelDescription:
    modelVariables: list[ScalarVariable]
