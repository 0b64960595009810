"""The suite's own adapters, drivers and trackers: the line that installs one from a checkout.

No package index under our control has these distributions, so a line names folders, with every folder of the
suite that one needs. pip would look for a missing one elsewhere.
"""

from __future__ import annotations

_ADAPTERS = (
    *("agent-framework", "agentscope", "autogen", "crewai", "dspy", "google-adk", "langchain"),
    *("langgraph", "llama-index", "openai-agents", "pydantic-ai", "smolagents", "strands-agents"),
)
_AUDIT = (
    *("chats", "compare", "explain", "export", "import", "lineage", "logs"),
    *("rescore", "rollouts", "runs", "serve", "top", "trace", "verify"),
)
_NAMES_V03 = """
    Adapter AgentLightningClient AgentLightningServer AgentOpsTracer AttributeValue Attributes BaseTracer
    ClientServerExecutionStrategy CollectionBasedLightningStore Dataset DevTaskLoader DummyTracer
    EnqueueRolloutRequest ExecutionEvent ExecutionStrategy FAST FastAlgorithm Hook InMemoryLightningStore
    LLMProxy LightningEnvVar LightningStore LightningStoreClient LightningStoreServer LightningStoreThreaded
    LitAgentRunner LlmProxyTraceToTriplet NamedResources OtelTraceAdapter OtelTracer PaginatedResult
    ResourceUnion ResourcesUpdate RolloutLegacy RolloutMode RolloutRawResult Runner
    SharedMemoryExecutionStrategy Task TaskInput ThreadingEvent TraceAdapter TraceToMessages
    TraceToTripletBase Tracer TracerTraceToTriplet TripletExporter WorkerStatus clear_active_tracer
    configure_logger emit_tool_call get_active_tracer get_message_value get_object_value get_rewards_from_span
    is_reward_span lightning_cli llm_rollout prompt_rollout resolve_bool_env_var resolve_int_env_var
    resolve_str_env_var reward set_active_tracer setup_logging setup_module_logging tracer
"""
_MODULES_V03 = """
    adapter algorithm client config emitter env_var execution instrumentation litagent llm_proxy logging
    reward server tracer trainer utils verl
"""
_ARGUMENTS_V03 = """
    adapter daemon dev hooks llm_proxy max_rollouts max_tasks n_runners n_workers port strategy tracer
    triplet_exporter
"""
_AGENTS_V03 = "on_rollout_start on_trace_start on_trace_end on_rollout_end trained_agents"
_OPERATIONS_AUDIT = """
    add_rescored add_reward_version delete_run prune query_reward_versions rescored statistics
"""
_FACES = "APOTrainer Agent GRPOTrainer RLConfig RLOOTrainer SFTTrainer"
_GATEWAY = ("./core", "./plugins/gateway")
_CLUSTER = ("./core", "./plugins/cluster")
_STORAGE = ("./core", "./plugins/cluster[s3]")
_V03 = ("./core", "./plugins/audit", "./plugins/cluster", "./plugins/v03")
_NEEDED = {
    "langgraph": ("./adapters/langchain",),
    "openai-agents": ("./plugins/gateway",),
}
_WITH = {"autogen-core": "autogen"}
"""Adapters that come with another one."""
CHECKOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "adapter": {
        name: ("./core", *_NEEDED.get(name, ()), f"./adapters/{name}[instruments]") for name in _ADAPTERS
    },
    "tracker": {
        "console": ("./core", "./plugins/trackers"),
        **{
            name: ("./core", f"./plugins/trackers[{name}]")
            for name in ("plot", "tensorboard", "wandb", "mlflow", "trackio")
        },
    },
    "runner": {name: (*_CLUSTER, f"./plugins/{name}[client]") for name in ("kubernetes", "ray")},
    "driver": {name: ("./core", f"./plugins/{name}") for name in ("local", "verl")},
    "recipe or algorithm": {
        **{name: ("./core", "./plugins/gateway", "./plugins/apo") for name in ("alternate", "apo", "gepa")},
        **{name: ("./core", "./plugins/audit") for name in ("dpo", "rejection", "sft")},
    },
    "task set": {
        name: ("./core", "./plugins/examples") for name in ("coding", "math", "reasoning", "sql-generation")
    },
    "API": dict.fromkeys(("/responses", "/conversations", "/messages"), _GATEWAY),
    "store": {
        **{name: ("./core", "./plugins/postgres") for name in ("postgres", "postgresql")},
        **dict.fromkeys(("http", "https"), _CLUSTER),
    },
    "service": {"metrics": _CLUSTER, "storage": _STORAGE},
    "command": {
        **{name: ("./core", "./plugins/audit") for name in _AUDIT},
        "doctor": (*_CLUSTER, "./plugins/gateway", "./plugins/programs", "./plugins/testing"),
        "init": ("./core", "./plugins/examples"),
        **{name: (*_CLUSTER, "./plugins/programs") for name in ("gateway", "run")},
        **dict.fromkeys(("runner", "store", "token"), _CLUSTER),
        "dashboard": ("./core", "./plugins/audit", "./plugins/dashboard"),
        "example": ("./core", "./plugins/examples"),
        "prompts": ("./core", "./plugins/gateway", "./plugins/apo"),
    },
    "name": {
        **dict.fromkeys(_NAMES_V03.split(), _V03),
        **dict.fromkeys(_FACES.split(), ("./core", "./plugins/examples")),
        **dict.fromkeys(("Rescored", "RewardVersion"), ("./core", "./plugins/audit")),
        **dict.fromkeys(("CommandAgent", "CommandResult"), (*_CLUSTER, "./plugins/programs")),
        "VERL": ("./core", "./plugins/verl"),
    },
    "key": {
        name: ("./core", "./plugins/examples")
        for name in ("device", "episodes", "eval_tasks", "learning_rate", "type")
    },
    "store operation": dict.fromkeys(_OPERATIONS_AUDIT.split(), ("./core", "./plugins/audit")),
    "module": dict.fromkeys(_MODULES_V03.split(), _V03),
    "argument": dict.fromkeys(_ARGUMENTS_V03.split(), _V03),
    "field": {
        "budget": _GATEWAY,
        **dict.fromkeys(("gateways", "metrics"), _CLUSTER),
        **dict.fromkeys(("command", "program", "reward"), (*_CLUSTER, "./plugins/programs")),
    },
    "agent": dict.fromkeys(_AGENTS_V03.split(), _V03),
    "environments": {name: ("./core", f"./plugins/{name}[instruments]") for name in ("openenv", "verifiers")},
}
"""Kind → name → folders of a checkout, with the extra that brings the framework. Of names, modules, arguments
of ``Trainer``, fields of a run and what agents may have: those that come with a plugin.
"""


def install_line(kind: str, name: str) -> str | None:
    """Return the command that installs an adapter, driver or tracker from a checkout; ``None`` for any other
    name.
    """
    folders = CHECKOUT.get(kind, {}).get(_WITH.get(name, name))
    if folders is None:
        return None
    words = [f'"{folder}"' if "[" in folder else folder for folder in folders]
    return f"pip install -c constraints.txt {' '.join(words)}"


def not_installed(kind: str, name: str) -> str | None:
    """Return a sentence that names the plugin of something, and how to install it; ``None`` if it is of no
    plugin of the suite.
    """
    if (line := install_line(kind, name)) is None:
        return None
    plugin = CHECKOUT[kind][name][-1].rpartition("/")[2].partition("[")[0]
    return (
        f"it comes with agl-{plugin}, which is not installed, or AGL_PLUGINS leaves it out; in a checkout of "
        f"Agent Lightning: {line}"
    )
