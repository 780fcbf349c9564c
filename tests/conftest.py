"""One thread everywhere: the models are small, and sums must not depend on how many cores are free."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fedveil", deadline=None)  # a busy machine is not a failure
settings.load_profile("fedveil")
