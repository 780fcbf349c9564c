"""FedVeil's parts for people who have a Flower app already: an accountant, a strategy, and client mods.

- :class:`LedgerAccountant`: FedVeil's journal and accountants behind Flower's ``PrivacyAccountant``.
- :class:`FedVeilStrategy`: any of FedVeil's rules, with stages before and after it, as a Flower strategy.
- :class:`StagesMod`: stages (clip, noise, shrinkage) on what a client sends, with that client's own budget.

To run FedVeil's own methods on Flower none of this is needed: ``fedveil run runtime=flower``.
"""

from fedveil.core.errors import Refused

try:
    import flwr as _flwr  # noqa: F401
except ImportError:
    raise Refused("fedveil.flower: Flower is not installed; run pip install 'fedveil[flower]'") from None

from fedveil.flower.accountant import LedgerAccountant
from fedveil.flower.mods import StagesMod
from fedveil.flower.strategy import FedVeilStrategy

__all__ = ["FedVeilStrategy", "LedgerAccountant", "StagesMod"]
