"""The files of a run: an aggregator and its clients on this host, and their plan.

Every run needs certificates and identities of all parties, the settings of each
aggregator, the plan that its processes read, and a log of each process.  Other files in
the folder are the command's.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from secagg.client.enrolment import ClientEnrolment
from secagg.config import ServerSettings, load_server_settings
from secagg.crypto.entropy import SystemEntropy
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.development import DevelopmentEnrolment
from secagg.pki.key_files import key_text
from secagg.protocol.parameters import Graph
from secagg.protocol.profiles import Profile
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity

_HEAD: Final = (
    "# Written by a command of secagg; the same kind of file as "
    "deploy/config/server.full.toml.\n"
)
SettingsTables = Mapping[str, Mapping[str, object]]
"""Sections of a settings file: keys and values as JSON has them."""

ROUNDS_OF_ANSWERS: Final = (
    "choose_edges",
    "share_keys",
    "masked_input",
    "consistency",
    "unmasking",
)
"""Rounds behind the first one, as settings name them."""


def client_name(number: int) -> str:
    """Return the identity of a client, counted from 1."""
    return f"client-{number}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The directory of one run."""

    root: Path

    @property
    def pki(self) -> Path:
        """Certificates of all parties."""
        return self.root / "pki"

    @property
    def plan(self) -> Path:
        """The parameters of the run."""
        return self.root / "plan.json"

    def settings(self, name: str = "server") -> Path:
        """The settings file of an aggregator."""
        return self.root / f"{name}.toml"

    def log(self, name: str) -> Path:
        """Standard error of a process."""
        return self.root / "logs" / f"{name}.log"

    def issue(self, clients: int, *, enrolled: bool = True) -> str:
        """Issue certificates to all parties, and credentials to the clients.

        Args:
            clients: How many there are.
            enrolled: Whether they have credentials.

        Returns:
            The enrolment key of the run's own issuer, as text; empty without
            credentials.
        """
        authority = CertificateAuthority.create()
        authority.issue_all(self.pki, hosts=["127.0.0.1"], clients=clients)
        if not enrolled:
            return ""
        _, key = DevelopmentEnrolment.create(
            self.pki,
            trust_domain=authority.trust_domain,
            names=map(client_name, range(1, clients + 1)),
            now=int(time.time()),
            entropy=SystemEntropy(),
        )
        return key_text(key)

    def identity(self, name: str) -> TLSIdentity:
        """Load the certificate of a client."""
        return TLSIdentity.load(
            certificate=self.pki / f"{name}.pem",
            private_key=self.pki / f"{name}.key",
            authority=self.pki / "ca.pem",
            role=Role.CLIENT,
        )

    def enrolment(self, name: str, enrolment_key: str) -> ClientEnrolment | None:
        """Return the credential of a client; None in a run without credentials."""
        if not enrolment_key:
            return None
        files = DevelopmentEnrolment(self.pki)
        return ClientEnrolment(
            seed=files.seed(name),
            credential=files.credential(name),
            enrolment_key=enrolment_key,
        )

    def write_settings(
        self, tables: SettingsTables, *, name: str = "server"
    ) -> ServerSettings:
        """Write the settings of an aggregator and load them as it will.

        Args:
            tables: Their sections; what every run has is added.
            name: What the file and its folders begin with.

        Raises:
            ServiceError: BAD_SETTINGS; no session can be like this.
        """
        own = {
            "listen": "127.0.0.1:0",
            "state_dir": f"{name}-state",
            "rollback_mark": f"{name}-mark",
            "output_dir": "released",
        }
        tls = {"ca": "ca.pem", "certificate": "server.pem", "key": "server.key"}
        written = {
            **tables,
            "tls": {key: f"pki/{file}" for key, file in tls.items()},
            "server": {**own, **tables.get("server", {})},
        }
        self.settings(name).write_text(
            _HEAD
            + "".join(
                f"\n[{section}]\n"
                # JSON's texts and numbers are written as those of TOML are.
                + "".join(
                    f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
                    for key, value in values.items()
                )
                for section, values in written.items()
            ),
            encoding="utf-8",
        )
        return load_server_settings(self.settings(name), environment={}).settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What every run is asked for.

    Attributes:
        clients: Size of the cohort.
        round_seconds: How long a round waits for clients that will not answer.
        degree: Neighbours of each client on a ring, or that each draws; 0 for the
            complete graph.
        profile: Named threat model.
        enrolment_key: Of the run's issuer, as text; empty without credentials.
    """

    clients: int
    round_seconds: int
    degree: int = 0
    profile: Profile = Profile.HONEST_CURIOUS_SERVER
    enrolment_key: str = ""

    @property
    def graph(self) -> Graph:
        """Which clients share with each other."""
        return Graph.of(self.profile, self.degree)

    def write(self, folder: RunFolder) -> None:
        """Write the plan for the processes of the run."""
        text = json.dumps(dataclasses.asdict(self))
        folder.plan.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """Read what `write` has written."""
        found = json.loads(folder.plan.read_text(encoding="utf-8"))
        return cls(**{**found, "profile": Profile(found["profile"])})
