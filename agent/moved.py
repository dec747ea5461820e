"""Keep module paths of the agent of version 0.1.0 working for one release; each use of one warns."""

from __future__ import annotations

MOVED = {
    "agent.actions": "agent.core.actions",
    "agent.adapters": "agent.contracts",
    "agent.adapters.actions": "agent.contracts.actions",
    "agent.adapters.observations": "agent.contracts.observations",
    "agent.approvals": "agent.layers.approvals",
    "agent.budget": "agent.core.budget",
    "agent.delegation": "agent.layers.delegation",
    "agent.finishing": "agent.layers.finish_checks",
    "agent.goals": "agent.core.goals",
    "agent.hooks": "agent.core.loop.hooks",
    "agent.inbox": "agent.layers.inbox",
    "agent.kits": "agent.core.kits",
    "agent.lineage": "agent.record.lineage",
    "agent.loop": "agent.core.agent",
    "agent.prompt": "agent.core.prompt",
    "agent.registry": "agent.core.registry",
    "agent.resuming": "agent.record.resume",
    "agent.skills": "agent.job.skills",
    "agent.status": "agent.core.status",
    "agent.store": "agent.record.store",
    "agent.stuck": "agent.layers.stuck",
}
