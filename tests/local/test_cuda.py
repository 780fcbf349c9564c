"""On a CUDA device: recorded steps, issued steps and the sequential engine agree; noise is what it says it is."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from tests.local.engines import Reader, assert_alike, configuration, counted, images, sentences, train
from tests.local.test_cohort import METHODS, WALKS, broken
from tests.support import blobs
from torch import nn
from torch.nn import functional as F

import fedveil
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.local.fold import Folded
from fedveil.local.fused import FusedMaxPool2d
from fedveil.local.layers import Frame, squared
from fedveil.local.objective import Objective
from fedveil.local.precision import products
from fedveil.local.recording import recordable
from fedveil.local.schedule import Marks
from fedveil.local.steps import Into
from fedveil.local.unfold import Window, patches
from fedveil.privacy.clip import clip_each
from fedveil.privacy.noise import gaussian
from fedveil.privacy.rng import secure_generator
from fedveil.runtime.prepare import prepare

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # the machine's own torch may be another version
]
MORE = {
    f"{name}-{variant}": [f"method={name}", "sigma=0.3", f"method.algorithm_variant={variant}"]
    for name in ("dp_fed_stein", "dp_scaffold", "dp_scaffold_stein")
    for variant in ("last_noise_server_jse", "step_noise_step_jse", "step_noise_final_jse")
}
ALL = METHODS | MORE


@cache
def trained(model, method, walk, engine, replays=None):
    settings = [*ALL[method], *WALKS[walk]]
    if model == "reader":
        return train(sentences(), *settings, engine=engine, replays=replays, device="cuda", model=Reader())
    sizes = {"mlp": ["model.hidden=6"], "cnn_large": ["model.hidden=20"]}.get(model, [])
    data = images(clients=3) if model.startswith("cnn") else blobs()
    return train(data, *settings, f"model={model}", *sizes, engine=engine, replays=replays, device="cuda")


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("model", ["mlp", "cnn", "cnn_large", "reader"])
def test_replayed_steps_equal_the_sequential_engine(model, method, walk):
    replayed = trained(model, method, walk, "fold", True)
    assert replayed.training.engine.trouble is None
    assert replayed.training.engine._recording is not None
    assert_alike(replayed, trained(model, method, walk, "sequential"))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_issued_steps_equal_the_sequential_engine(model, method, walk):
    assert_alike(trained(model, method, walk, "fold", False), trained(model, method, walk, "sequential"))


@pytest.mark.parametrize("method", ["scaffold", "dp_fed_stein-step_noise_step_jse"])
def test_mapping_equals_the_sequential_engine(method):
    assert_alike(trained("cnn", method, "poisson", "vmap"), trained("cnn", method, "poisson", "sequential"))


@pytest.mark.parametrize("method", ["fedavg", "dp_scaffold_stein-step_noise_final_jse"])
def test_chunks_change_nothing(method):
    data, texts = images(clients=4), [*ALL[method], *WALKS["poisson"], "model=cnn"]
    together = train(data, *texts, engine="fold", device="cuda")
    for chunk in (1, 2):
        assert_alike(train(data, *texts, engine="fold", device="cuda", chunk=chunk), together)


def test_noise_of_each_client_by_its_own_sigma():
    texts = ["method=dp_fedavg_local", "privacy={epsilon: 5}", "rounds=3", "batch=3", "steps=4", "model=mlp"]
    texts = [*texts, "model.hidden=6"]
    a, b = (train(blobs(), *texts, engine=e, device="cuda") for e in ("fold", "sequential"))
    assert a.training.engine._recording is not None
    assert_alike(a, b)
    assert len({r.noise_std for r in a.releases}) > 1


def test_broken_examples_count_as_zero_under_a_clip():
    texts = [*METHODS["dp_fedavg_local-step_noise"], "batch=3", "local_epochs=2", "model=mlp", "model.hidden=4"]
    found, expected = (
        train(broken(4), *texts, engine=e, rounds=1, device="cuda") for e in ("fold", "sequential")
    )  # fmt: skip
    assert bool(torch.isfinite(found.server["w"]).all())
    assert torch.allclose(found.server["w"], expected.server["w"], rtol=0, atol=1e-12)
    assert found.releases and counted(found.releases) == counted(expected.releases)


def test_secret_noise_is_never_drawn_from_a_short_key():
    """It comes from the operating system, number by number, so steps are issued one by one."""
    fixed = {"data": "digits", "model": "logistic", "rounds": 2, "device": "cuda", "engine": "fold", "cohort": 3}
    method = {"name": "dp_fedavg_local", "algorithm_variant": "step_noise", "sigma": 1.0, "clip_norm": 1.0}
    models = [fedveil.run(method=method, privacy={"rng": "secure"}, **fixed).summary["model_hash"] for _ in range(2)]
    assert models[0] != models[1]
    secret = Context(0, None, [0], [secure_generator()])  # type: ignore[arg-type]
    assert not recordable(chain(clip_each(1.0), gaussian(1.0)), secret)
    assert recordable(chain(clip_each(1.0), gaussian(1.0)), replace(secret, streams=[stream(0, "noise")]))


def nosy(outputs, targets):
    """A loss that reads a value, which no recording can repeat."""
    return torch.nn.functional.cross_entropy(outputs, targets) * (1.0 if float(outputs.sum()) < 1e30 else 0.5)


def test_a_step_that_cannot_be_recorded_is_issued():
    texts = [*METHODS["scaffold"], "batch=6", "model=mlp", "model.hidden=6"]
    a, b = (train(blobs(), *texts, loss=nosy, engine=e, device="cuda") for e in ("auto", "sequential"))
    assert_alike(a, b)


def test_patches_are_those_of_torch():
    generator = torch.Generator(device="cuda").manual_seed(0)
    for dtype, size in ((torch.float32, 9), (torch.float64, 4)):
        a = torch.randn(6, 3, size + 2, size, generator=generator, device="cuda", dtype=dtype)
        for window in (
            Window((3, 3), (1, 1), (1, 1), (1, 1)),
            Window((2, 3), (2, 1), (0, 2), (1, 2)),
            Window((1, 1), (3, 2), (0, 0), (1, 1)),
        ):
            assert torch.equal(patches(a, window, 2).cpu(), patches(a.cpu(), window, 2))


def test_noise_drawn_on_the_device_is_gaussian():
    """Kolmogorov-Smirnov on 400,000 numbers, and each row's variance: a false alarm once in 10,000 runs."""
    rows, dim, std = 40, 10_001, 0.7
    ctx = Context(0, None, list(range(rows)), [stream(7, "noise", k) for k in range(rows)])  # type: ignore[arg-type]
    value = torch.full((rows, dim), 3.0, dtype=torch.float64, device="cuda")
    out = gaussian(std)(Signal(value, bound=1.0, unit="client"), ctx)
    noise = ((out.value - 3.0) / std).cpu().numpy()
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-4
    low, high = stats.chi2.ppf([5e-5 / rows, 1 - 5e-5 / rows], dim) / dim
    assert ((noise**2).mean(axis=1) > low).all() and ((noise**2).mean(axis=1) < high).all()
    assert np.abs(np.corrcoef(noise) - np.eye(rows)).max() < 6 / np.sqrt(dim)
    half = (dim + 1) // 2
    assert abs(np.corrcoef(noise[0, : half - 1], noise[0, half:])[0, 1]) < 5 / np.sqrt(half)
    grid = 2.0 ** np.floor(np.log2(std * 2.0**-20))
    assert np.array_equal(out.value.cpu().numpy() / grid, np.round(out.value.cpu().numpy() / grid))


def far(found, right):
    return float((found.double() - right.double()).norm() / right.double().norm())


GEOMETRIES = [  # clients, examples, channels in and out, image, and the layer's settings
    (3, 5, 2, 7, (9, 8), {"kernel_size": (3, 2), "padding": (1, 0)}),
    (2, 3, 3, 16, (11, 11), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (2, 4, 5, 33, (10, 9), {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)}),
    (2, 2, 8, 6, (12, 12), {"kernel_size": 5, "padding": 2, "groups": 2}),
    (4, 1, 1, 80, (6, 6), {"kernel_size": 3}),
]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_kernels_in_float32_equal_the_layers_they_stand_for(geometry, each):
    """A whole small network: convolution, GroupNorm, pooling; float32 kernels against float64 without any."""
    clients, examples, channels, wide, image, settings = geometry
    torch.manual_seed(0)
    groups = 2 if wide % 2 == 0 else 1
    net = nn.Sequential(
        nn.Conv2d(channels, wide, **settings), nn.GroupNorm(groups, wide), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip
    net(torch.zeros(1, channels, *image))
    x = torch.randn(clients * examples, channels, *image, device="cuda")
    y = torch.randint(0, 3, (len(x),), device="cuda")
    stage = clip_each(0.3) if each else None
    rows = []
    for dtype in (torch.float32, torch.float64):
        objective = Objective.of(deepcopy(net).cuda().to(dtype), F.cross_entropy)
        noise = torch.randn(clients, objective.layout.dim, generator=torch.Generator().manual_seed(1))
        here = objective.initial() + 0.1 * noise.cuda().to(dtype)
        into = Into(torch.empty_like(here))
        counts = torch.full((clients,), examples, device="cuda")
        Folded(objective)(here, x.to(dtype), y, Marks(counts, examples), stage, into)
        rows.append(into.rows)
    assert far(*rows) < 2e-5


def test_pooling_as_torch_has_it():
    for size, kernel in (((3, 4, 7, 9), (2, 2)), ((2, 3, 8, 8), (3, 2))):
        x = torch.randn(*size, device="cuda").relu().requires_grad_()
        x.data[0, 0, 0, 0] = float("nan")
        pooled = FusedMaxPool2d.of(nn.MaxPool2d(kernel))(x)
        right = F.max_pool2d(x, kernel)
        g = torch.randn_like(right)
        assert torch.equal(pooled.nan_to_num(7.0), right.nan_to_num(7.0))
        assert torch.equal(*(torch.autograd.grad(out, x, g)[0] for out in (pooled, right)))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_fast_products_learn_the_same_and_never_reach_what_is_clipped(precision):
    """The bound of what is summed is that of float32, whatever the gradients were made of."""
    seen = []

    data = images(clients=3, examples=40)
    texts = [*METHODS["dp_fedavg_local-last_noise"], "model=cnn", "batch=1", "steps=2", "sampling=poisson", "lr=1.0"]
    fixed = ["device=cuda", "engine=fold", "cohort=3"]
    training = prepare(configuration(*texts, *fixed, f"precision={precision}", "method.clip_norm=0.01"), data=data)
    engine, each = training.engine, training.method.on_step.per_sample
    w = training.objective.initial()
    for i in range(20):
        x, y = (v[i : i + 1].to("cuda") for v in (data.train(0).x, data.train(0).y))
        into = Into(torch.empty(1, w.numel(), device="cuda"))
        engine.gradients(w[None], x.float(), y, Marks(torch.ones(1, dtype=torch.int64, device="cuda"), 1), each, into)
        seen.append(float(into.rows.double().norm()))
    assert max(seen) <= 0.01  # the margin of a clip covers what float32 rounds
    assert min(seen) > 0.0099
    plain = fedveil.run(
        method="fedavg", data="digits", model="cnn", rounds=3, device="cuda", engine="fold", precision=precision
    )
    exact = fedveil.run(method="fedavg", data="digits", model="cnn", rounds=3, device="cuda", engine="fold")
    assert abs(plain.accuracy - exact.accuracy) < 0.1
    assert plain.summary["model_hash"] != exact.summary["model_hash"]


def test_squared_norms_are_those_of_float64():
    for length in (1, 7, 1024, 5000):
        x = torch.randn(9, length, device="cuda")
        right = x.double().square().sum(1)
        assert bool(((squared(x) - right).abs() <= 1e-13 * right).all())
    x[3, 7] = float("inf")
    x[4, 7] = float("nan")
    assert torch.equal(torch.isfinite(squared(x)), torch.isfinite(x).all(1))


def test_products_are_exact_where_nothing_else_was_asked_for():
    frame, (a, b) = Frame(), torch.randn(2, 3, 64, 64, device="cuda")
    assert frame.precision == "float32"
    with products("float32"):
        error = (frame.product(a, b).double() - torch.bmm(a.double(), b.double())).abs().max()
    with products("tf32"):
        rough = (frame.product(a, b).double() - torch.bmm(a.double(), b.double())).abs().max()
    assert error < 1e-4 < rough
