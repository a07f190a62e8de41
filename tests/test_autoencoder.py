"""AutoEncoder as an estimator: scikit-learn's contract, parameters, state, streams, threads."""

import pytest
from sklearn.utils.estimator_checks import check_estimator

import fastdr


@pytest.mark.parametrize("parameters", [
    {}, {"hidden": (3,), "optimizer": "sgd", "learning_rate": 0.05, "batch_size": 8},
    {"hidden": (6, 2), "activation": "gelu", "tied": True, "noise": 0.1,
     "early_stopping": False}], ids=str)
def test_scikit_learn_finds_an_estimator_of_its_own_kind(parameters):
    for result in check_estimator(fastdr.AutoEncoder(max_epochs=20, **parameters), on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped
