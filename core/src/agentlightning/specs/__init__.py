"""Specs that plugins register, one small dataclass for each kind, and the protocols of their products.

A spec holds a name, a sentence and a factory that imports lazily, so that listing plugins costs nothing.
"""

from __future__ import annotations

from agentlightning.specs.adapter import (
    AdapterSpec as AdapterSpec,
)
from agentlightning.specs.curriculum import (
    Curriculum as Curriculum,
    CurriculumSpec as CurriculumSpec,
)
from agentlightning.specs.driver import (
    Driver as Driver,
    DriverFactory as DriverFactory,
    DriverSpec as DriverSpec,
    Inspector as Inspector,
    Job as Job,
    PeerDriver as PeerDriver,
    ScoringDriver as ScoringDriver,
    Server as Server,
    WatchedDriver as WatchedDriver,
)
from agentlightning.specs.gateway import (
    ApiFormatSpec as ApiFormatSpec,
    CallGuard as CallGuard,
)
from agentlightning.specs.lazy import (
    lazily as lazily,
    lazy_type as lazy_type,
)
from agentlightning.specs.runner import (
    GatewayJob as GatewayJob,
    RemoteRunner as RemoteRunner,
    RunnerJob as RunnerJob,
    RunnerSpec as RunnerSpec,
    RunServiceSpec as RunServiceSpec,
)
from agentlightning.specs.section import (
    SectionSpec as SectionSpec,
)
from agentlightning.specs.source import (
    ImportFormatSpec as ImportFormatSpec,
    PolicySpec as PolicySpec,
    StoreOperationSpec as StoreOperationSpec,
    StoreSpec as StoreSpec,
    TaskSetSpec as TaskSetSpec,
)
from agentlightning.specs.tracker import (
    Tracker as Tracker,
    TrackerSpec as TrackerSpec,
)
from agentlightning.specs.training import (
    AlgorithmSpec as AlgorithmSpec,
    BaselineSpec as BaselineSpec,
    CreditRule as CreditRule,
    CreditRuleSpec as CreditRuleSpec,
    RecipeSpec as RecipeSpec,
    TrainerPart as TrainerPart,
)
from agentlightning.specs.view import (
    CommandSpec as CommandSpec,
    RolloutViewSpec as RolloutViewSpec,
)
