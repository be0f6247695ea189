"""What node_fit takes from scikit-learn's base classes."""

class TargetTags:
    multi_output: bool

class RegressorTags:
    poor_score: bool

class Tags:
    target_tags: TargetTags
    regressor_tags: RegressorTags

class BaseEstimator:
    n_features_in_: int
    def __sklearn_tags__(self) -> Tags: ...

class RegressorMixin: ...
