"""What a damage of the flagship wheel is: what it does, and what verify has to say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from damages_wheel import Wheel

from pinwheel.verify.model import Status

C, CORE, MOE = "vllm/_C.abi3.so", "vllm/_core_C.abi3.so", "vllm/_moe_C.abi3.so"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One way to damage the wheel.

    Attributes:
        rule: the one that must notice.
        do: damages a copy.
        says: what the report must say of that rule.
        status: how the rule comes out.
        also: rules that cannot but break with it, with how they come out and why.
        asked: what of the request to verify is different, by field.
    """

    rule: str
    do: Callable[[Wheel], object]
    says: str
    status: Status = Status.FAILED
    also: Mapping[str, tuple[Status, str]] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def breaks(self) -> dict[str, Status]:
        """Every rule that it breaks, and how it comes out."""
        return {self.rule: self.status, **{rule: status for rule, (status, _) in self.also.items()}}
