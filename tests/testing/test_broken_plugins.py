"""Each contract fails on a plugin with one fault, at the right check and with the right words."""

from __future__ import annotations

import inspect
import re

import pytest
from testing import broken

from headwater.testing.packages import write_package

pytest_plugins = ["pytester"]

VALID, WORK = "test_its_surrogate_is_valid", "test_nothing_is_done_at_import_or_construction"
FAULTS = {
    "estimator": {
        "GroupsReversed": (VALID, "order them from the noise"),
        "BeyondTheEnd": (VALID, "outside of the 8 steps"),
        "CoupledTooMuch": (VALID, "coupling 1.5 is not in 0 to 1"),
        "CrashesOnShortOnes": ("test_any_number_of_steps_works_or_is_refused", "IndexError"),
        "NoPosteriorMean": ("test_the_endpoint_is_what_it_declares", "of no step i"),
        "GlobalDraw": ("test_one_seed_gives_one_surrogate", "is handed in"),
        "DrawForNothing": ("test_other_seeds_give_other_surrogates", "32 seeds give one"),
        "StepsByBatch": ("test_the_steps_do_not_depend_on_the_samples", "or on how many"),
        "InPlace": ("test_building_changes_no_cached_tensor", "works in place"),
        "SaysExact": ("test_exact_is_true", "differs from the exact one by"),
        "SaysExactPerStep": ("test_exact_is_true", "differs from the exact one by"),
        "WeightsOfTheBatch": ("test_micro_batches_do_not_change_the_gradient", "a mean for"),
        "HiddenForward": ("test_its_work_is_what_it_says", "say the rest in Surrogate.measurem"),
        "HalfEndpoint": ("test_types_are_at_least_float32", "endpoint of torch.float32 states"),
        "Forgetful": ("test_a_resumed_run_equals_a_straight_one", "belongs into state()"),
    },
    "reward": {
        "BatchNormalised": ("test_a_score_does_not_depend_on_the_batch", "taken over the batch"),
        "ByPosition": ("test_scores_move_with_their_images", "matched by position"),
        "ChangesImages": ("test_images_are_left_as_they_are", "may not work in place"),
        "HalfTheGraph": ("test_differentiable_is_true", "cuts or bends the graph"),
        "ZeroGradient": ("test_differentiable_is_true", "image 0 has a zero gradient"),
        "SecretText": ("test_needs_text_is_true", "depend on the prompt"),
        "WrongShape": ("test_it_gives_one_finite_score_an_image", "expected (1,)"),
        "LeaksWeights": ("test_loading_again_leaves_nothing_behind", "leaves 4.00 MiB"),
        "WorksWhenMade": (WORK, "constructing it opens /dev/null"),
        "DrawsWhenMade": (WORK, "Python's global generator"),
        "ByValue": ("test_it_compares_by_identity", "declare it with eq=False"),
        "HookDefault": (
            "test_a_hook_implementation_has_no_defaults",
            "take plain parameters without defaults",
        ),
        "Unmarked": ("test_it_fits_the_hook_specs", "mark it with @headwater.hookimpl"),
        "AnyField": ("test_a_value_of_a_wrong_type_is_refused", "is accepted; give the field"),
        "Undocumented": ("test_everything_is_documented", "under the field level"),
        "HoldsALambda": ("test_it_pickles", "keep no lambda"),
        "SharedList": ("test_it_compares_by_identity", "_seen is one object in two"),
        "Misdeclared": ("test_it_declares_what_it_can_do", "expected True or False"),
        "LosesItself": ("test_its_settings_survive_toml", "level was 2.0 and comes back as 4.0"),
    },
    "algorithm": {
        "WrongSign": ("test_the_upstream_leads_downhill", "the sign is wrong"),
        "NoMean": ("test_the_upstream_is_a_mean_over_n", "divided by credit.count"),
        "TrainsTheLast": ("test_its_steps_are_within_the_rollout", "and not stochastic"),
        "OwnSteps": ("test_every_process_gets_the_same_steps", "two processes would get"),
        "NeighboursAsGroups": ("test_the_order_of_samples_changes_nothing", "by group id"),
        "HalfGradient": ("test_the_endpoint_gradient_is_the_derivative_of_its_loss", "its loss"),
    },
    "dynamics": {
        "SumNotMean": ("test_log_prob_grad_is_the_gradient_of_log_prob", "differs from autograd"),
        "WrongDrift": ("test_it_follows_the_mean_of_a_gaussian", "the drift is wrong"),
        "ScoresCertainty": ("test_a_deterministic_step_is_never_scored", "raise ValueError"),
        "NeverNoisy": ("test_stochastic_is_true", "0 of 18 steps have noise"),
    },
    "backbone": {
        "MixesSamples": ("test_samples_do_not_mix", "nothing over the batch"),
        "BeyondWhite": ("test_images_are_within_0_and_1", "images go from"),
        "AnyNoise": ("test_each_sample_starts_from_its_own_seed", "depends on its batch"),
        "NoReference": ("test_within_reference_it_is_the_model_before_training", "does not give"),
        "PassesItsNetworkBy": ("test_it_calls_its_network", "would be passed by"),
        "CutGraph": ("test_its_gradient_is_the_slope", "the gradient says"),
    },
    "observer": {
        "WritesAnywhere": ("test_it_writes_in_the_run_folder_alone", "steps.txt into the working"),
        "Fails": ("test_it_works_without_a_network_and_fails_in_nothing", "it cannot write"),
    },
}
CASES = [(kind, name) for kind, faults in FAULTS.items() for name in faults]
SIZES = {"reward": "size = (4, 4)", "backbone": "size = (4, 4)"}


def as_name(text):
    return re.sub(r"(?<!^)(?=[A-Z])", "-", text).lower()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Test id: what it said, of one run of all the contracts; an empty text for a pass."""
    folder = tmp_path_factory.mktemp("broken")
    points = {f"{kind} {as_name(name)}": name for kind, name in CASES}
    write_package(folder, "broken-plugins", points, inspect.getsource(broken))
    (folder / "conftest.py").write_text('pytest_plugins = ["headwater.testing.fixtures"]\n')
    lines = ["import pytest", "from headwater.testing import *"]
    for kind, name in CASES:
        lines += [
            '@pytest.mark.usefixtures("headwater_toys")',
            f"class Test{name}({kind.capitalize()}Contract):",
            f'    name = "{as_name(name)}"',
            f"    {SIZES.get(kind, '')}",
        ]
    (folder / "test_them.py").write_text("\n".join(lines) + "\n")
    ids = [f"{folder}/test_them.py::Test{n}::{FAULTS[k][n][0]}" for k, n in CASES]
    found = {}

    class Listen:
        def pytest_runtest_logreport(self, report):
            key = tuple(report.nodeid.split("::")[1:])
            found[key] = found.get(key, "") + (str(report.longrepr) if report.failed else "")

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={folder}"]
        pytest.main([*options, "-c", "/dev/null", "--import-mode=importlib", *ids], [Listen()])
    return found


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_broken_plugin_fails_its_contract_and_is_told_why(outcomes, kind, name):
    check, words = FAULTS[kind][name]
    said = outcomes[f"Test{name}", check]
    assert said, f"{name} passes {check}"
    assert words in " ".join(said.split()), said[-1500:]
