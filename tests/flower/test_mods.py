import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import SHAPES, app, options, run, start_arrays

from fedveil.core.errors import Refused
from fedveil.flower import FedVeilStrategy, StagesMod
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.clip import ClipEach, clip
from fedveil.privacy.events import Event
from fedveil.privacy.noise import gaussian
from fedveil.privacy.shrink import shrink


def with_mod(mod, **more):
    return app(mods=[mod], **more)


def length(arrays):
    return np.sqrt(sum(np.sum(np.float64(arrays[name].numpy()) ** 2) for name in SHAPES))


def seen_by_server(made, nodes, rounds=1):
    """The replies of every round, as they leave the clients."""
    grid, replies = LocalGrid(made, nodes), []
    ask = grid.send_and_receive

    def listen(messages, *, timeout=None):
        found = ask(messages, timeout=timeout)
        replies.append(found)
        return found

    grid.send_and_receive = listen
    run(FedVeilStrategy(**options(), weights="uniform"), grid, rounds)
    return [found for found in replies if found]


def test_a_move_is_clipped_before_it_leaves():
    mod = StagesMod(clip(norm=0.5))
    (replies,) = seen_by_server(with_mod(mod, step=lambda node: 100.0), [1, 2])
    for reply in replies:
        assert length(reply.content["arrays"]) == pytest.approx(0.5, rel=1e-5)
        assert reply.content["metrics"]["loss"] == 0.5  # no claim, nothing hidden


def test_noise_of_the_promised_size_and_no_clean_number_beside_it():
    mod = StagesMod(clip(norm=1.0), gaussian(multiplier=3.0), seed=5)
    rounds = seen_by_server(with_mod(mod, step=lambda node: 0.0), range(1, 41))
    values = np.concatenate([reply.content["arrays"][n].numpy().ravel() for reply in rounds[0] for n in SHAPES])
    assert len(values) == 360
    assert np.std(values) == pytest.approx(3.0, rel=0.17)  # deviation 1/sqrt(720) of it: 4.5 of them
    for reply in rounds[0]:
        assert dict(reply.content["metrics"]) == {"num-examples": 1}
        assert reply.content["arrays"]["seen"].numpy() == 7


def test_every_release_is_charged_once_and_the_budget_holds():
    spent = epsilon(Event("gaussian", 2.0, None, 3), 1e-5)
    mod = StagesMod(clip(norm=1.0), gaussian(multiplier=2.0), epsilon=spent * 1.001, delta=1e-5)
    made = with_mod(mod)
    grid = LocalGrid(made, [1, 2])
    run(FedVeilStrategy(**options(), weights="uniform"), grid, 5)
    for context in grid.contexts.values():
        assert mod.spent(context) == pytest.approx(spent)
    rounds = seen_by_server(made, [1], 5)
    assert [reply.has_error() for (reply,) in rounds] == [False] * 3 + [True] * 2
    assert "budget" in rounds[-1][0].error.reason


def test_a_journal_outlives_the_node(tmp_path):
    path = tmp_path / "releases.jsonl"

    def fresh():
        return StagesMod(clip(norm=1.0), gaussian(multiplier=2.0), journal=path)

    seen_by_server(with_mod(fresh()), [1], 2)
    again = fresh()
    grid = LocalGrid(with_mod(again), [1])
    assert again.spent(grid.contexts[1]) == pytest.approx(epsilon(Event("gaussian", 2.0, None, 2), 1e-5))


def test_shrinkage_after_noise_lowers_the_error():
    plain = StagesMod(clip(norm=1.0), gaussian(multiplier=3.0), seed=1)
    shrunk = StagesMod(clip(norm=1.0), gaussian(multiplier=3.0), shrink(target="zero"), seed=1)
    errors = []
    for mod in (plain, shrunk):
        (replies,) = seen_by_server(with_mod(mod, step=lambda node: 0.0), range(1, 21))
        errors.append(np.mean([length(reply.content["arrays"]) ** 2 for reply in replies]))
    assert errors[1] < errors[0] / 2


def test_what_is_no_number_is_clipped_to_nothing_under_a_mechanism():
    mod = StagesMod(clip(norm=1.0), gaussian(multiplier=1.0), seed=2)
    (replies,) = seen_by_server(with_mod(mod, step=lambda node: np.nan), [1])
    assert np.isfinite(replies[0].content["arrays"]["layer.bias"].numpy()).all()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: StagesMod(gaussian(multiplier=1.0)), "no bound"),
        (lambda: StagesMod(clip(norm=1.0), epsilon=1.0), "epsilon"),
        (lambda: StagesMod(clip(norm=1.0), gaussian(multiplier=1.0), epsilon=8.0, seed=1), "seed"),
        (lambda: StagesMod(ClipEach(1.0)), "single examples"),
        (lambda: StagesMod(clip(norm=1.0), gaussian(multiplier=1.0), shrink(target="previous")), "round to round"),
        (lambda: StagesMod(clip(norm=1.0), metrics="keep"), "metrics"),
        (lambda: StagesMod(clip(norm=1.0), gaussian(multiplier=1.0), accountant="none"), "accountant"),
    ],
)
def test_parts_that_do_not_fit_are_refused_when_built(build, words):
    with pytest.raises(Refused, match=words):
        build()


def private(**more):
    return StagesMod(clip(norm=1.0), gaussian(multiplier=1.0), **more)


def answers(made, content, kind):
    context = Context(1, 1, {"partition-id": 1}, RecordDict(), {})
    message = Message(content, dst_node_id=1, message_type=kind)
    return made(message, context)


def two_sets():
    return RecordDict({"arrays": start_arrays(), "more": ArrayRecord()})


def test_no_order_to_train_passes_beside_the_stages():
    made = with_mod(private())
    assert answers(made, two_sets(), "train").error.reason.startswith("StagesMod: an order to train has one set")
    assert answers(made, RecordDict({"arrays": start_arrays()}), "train").has_content()


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_other_answers_bring_neither_metrics_nor_arrays_past_a_mechanism(kind):
    def build(mod, arrays):
        made = ClientApp(mods=[mod])

        @getattr(made, kind)()
        def answer(msg, ctxt):
            content = {"metrics": MetricRecord({"num-examples": 57, "accuracy": 0.25})}
            return Message(RecordDict(content | ({"arrays": start_arrays()} if arrays else {})), reply_to=msg)

        return made

    asked = RecordDict({"arrays": start_arrays()})
    assert dict(answers(build(private(), False), asked, kind).content["metrics"]) == {"num-examples": 1}
    assert "arrays leave" in answers(build(private(), True), asked, kind).error.reason
    declared = answers(build(private(metrics="declare"), False), asked, kind)
    assert declared.content["metrics"]["num-examples"] == 57
