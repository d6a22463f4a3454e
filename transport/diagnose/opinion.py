"""What one source says of the verdict of another one."""

from __future__ import annotations

from dataclasses import dataclass

AGREES, DISAGREES, UNKNOWN = "agrees", "disagrees", "does not tell"


@dataclass(frozen=True)
class Opinion:
    """What a source says of another one's verdict. text: a sentence without its end."""

    source: str
    says: str
    text: str

    @property
    def sentence(self) -> str:
        said = f"{self.source} {self.says}" if self.says != UNKNOWN else self.source
        return f" {said}: {self.text}."
