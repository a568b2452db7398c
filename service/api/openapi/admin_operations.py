"""The routes under /admin, and those without a key, for the OpenAPI document."""

from collections.abc import Mapping

from service.api import admin, contracts, keys, rebuilds, retention, rollouts
from service.api.openapi import admin_objects
from service.api.openapi.operation import LAST_EVENT, Json, Operation
from service.api.openapi.stream_events import RecordedEvent, RolloutEvent
from service.domain.limits import Limits
from service.shift_flow import MovedAlias
from service.store import audit
from service.store.rebuilds import Rebuild
from service.store.tenants import TenantRecord

FILTERS: Json = {
    name: {
        "type": "string",
        "description": "For views that have this column as a filter; see `GET /admin/audit`.",
    }
    for name in sorted({column for view in audit.VIEWS.values() for column in view.filters})
}

ADMIN: Mapping[str, Operation] = {
    "GET /admin/revisions": Operation(
        id="listRevisions", says="List revisions", answer=admin_objects.RevisionList
    ),
    "POST /admin/revisions": Operation(
        id="registerRevision",
        says="Register a revision",
        body=admin.RevisionBody,
        answer=admin_objects.Registered,
    ),
    "GET /admin/revisions/{digest}": Operation(
        id="getRevision", says="Read a revision's descriptor", answer=admin_objects.Revision
    ),
    "POST /admin/revisions/{digest}/retire": Operation(
        id="retireRevision",
        says="Take all engines of a revision out of the fleet",
        answer=admin_objects.RetiredRevision,
    ),
    "GET /admin/revisions/{digest}/canary": Operation(
        id="getCanary", says="Read what engines of a revision must answer", answer=admin_objects.Canary
    ),
    "DELETE /admin/revisions/{digest}/canary": Operation(
        id="forgetCanary",
        says="Have the next engine of a revision set it",
        answer=admin_objects.ForgottenCanary,
    ),
    "PUT /admin/aliases/{name}": Operation(
        id="moveAlias", says="Point an alias at a revision", body=admin.AliasBody, answer=MovedAlias
    ),
    "GET /admin/aliases": Operation(id="listAliases", says="List aliases", answer=admin_objects.AliasList),
    "GET /admin/engines": Operation(id="listEngines", says="List engines", answer=admin_objects.EngineList),
    "POST /admin/engines": Operation(
        id="registerEngine",
        says="Register an engine",
        body=admin.EngineBody,
        answer=admin_objects.RegisteredEngine,
    ),
    "POST /admin/engines/{boot}/heartbeat": Operation(
        id="renewEngine", says="Renew an engine's lease", answer=admin_objects.Heartbeat
    ),
    "PUT /admin/engines/{boot}/adapters": Operation(
        id="setAdapters",
        says="Tell the adapters that an engine serves",
        body=admin.AdaptersBody,
        answer=admin_objects.ServedAdapters,
    ),
    "POST /admin/engines/{boot}/drain": Operation(
        id="drainEngine", says="Send an engine no new turns", answer=admin_objects.LeavingEngine
    ),
    "DELETE /admin/engines/{boot}": Operation(
        id="retireEngine",
        says="Take an engine out of the fleet",
        answer=admin_objects.LeavingEngine,
        otherwise={204: None},
    ),
    "GET /admin/conversations/{conversation_id}/artifacts": Operation(
        id="listArtifacts", says="List a conversation's KV", answer=admin_objects.ArtifactList
    ),
    "DELETE /admin/conversations/{conversation_id}/content": Operation(
        id="eraseConversation", says="Erase what was said", answer=admin_objects.Erased
    ),
    "POST /admin/rollouts": Operation(
        id="startRollout",
        says="Start a rollout",
        body=rollouts.RolloutBody,
        answer=admin_objects.RolloutProgress,
        refuses=(404,),
    ),
    "GET /admin/rollouts": Operation(
        id="listRollouts", says="List rollouts", answer=admin_objects.RolloutList
    ),
    "GET /admin/rollouts/{rollout_id}": Operation(
        id="getRollout", says="Read a rollout's progress", answer=admin_objects.RolloutProgress
    ),
    "POST /admin/rollouts/{rollout_id}/{how}": Operation(
        id="moveRollout",
        says="Pause, resume, abort or take back a rollout",
        body=rollouts.WhyBody,
        answer=admin_objects.RolloutProgress,
    ),
    "GET /admin/rollouts/{rollout_id}/events": Operation(
        id="watchRollout", says="Stream a rollout", answer=None, stream=RolloutEvent, headers=LAST_EVENT
    ),
    "GET /admin/rebuilds": Operation(
        id="listRebuilds", says="List rebuilds", answer=admin_objects.RebuildList
    ),
    "GET /admin/rebuilds/{rebuild_id}": Operation(id="getRebuild", says="Read a rebuild", answer=Rebuild),
    "POST /admin/rebuilds/{rebuild_id}/cancel": Operation(
        id="cancelRebuild", says="Cancel a rebuild", body=rebuilds.ByBody, answer=Rebuild
    ),
    "POST /admin/rebuilds/{rebuild_id}/retry": Operation(
        id="retryRebuild", says="Try a rebuild again", answer=Rebuild
    ),
    "GET /admin/contracts": Operation(
        id="listContracts", says="List compatibility contracts", answer=admin_objects.ContractList
    ),
    "POST /admin/contracts": Operation(
        id="approveContract",
        says="Approve a compatibility contract",
        body=contracts.ContractBody,
        answer=admin_objects.Contract,
        refuses=(404,),
    ),
    "GET /admin/contracts/{contract_id}": Operation(
        id="getContract", says="Read a contract", answer=admin_objects.Contract
    ),
    "DELETE /admin/contracts/{contract_id}": Operation(
        id="revokeContract", says="Revoke a contract", answer=admin_objects.RevokedContract
    ),
    "GET /admin/contracts/{contract_id}/terms": Operation(
        id="getContractTerms",
        says="The file that an engine is given",
        answer=admin_objects.ContractTerms,
    ),
    "GET /admin/keys": Operation(id="listKeys", says="List keys", answer=admin_objects.KeyList),
    "POST /admin/keys": Operation(
        id="createKey", says="Make a key", body=keys.KeyBody, answer=admin_objects.NewKey, refuses=(404,)
    ),
    "POST /admin/keys/{key_id}/rotate": Operation(
        id="rotateKey",
        says="Make a key in place of another",
        body=keys.RotateBody,
        answer=admin_objects.NewKey,
    ),
    "DELETE /admin/keys/{key_id}": Operation(
        id="revokeKey", says="Revoke a key", answer=admin_objects.RevokedKey
    ),
    "GET /admin/tenants": Operation(id="listTenants", says="List tenants", answer=admin_objects.TenantList),
    "GET /admin/tenants/{tenant}": Operation(id="getTenant", says="Read a tenant", answer=TenantRecord),
    "PUT /admin/tenants/{tenant}": Operation(
        id="createTenant", says="Make a tenant", body=keys.TenantBody, answer=TenantRecord
    ),
    "PUT /admin/tenants/{tenant}/policy": Operation(
        id="setPolicy", says="Set a tenant's on_upgrade", body=keys.PolicyBody, answer=TenantRecord
    ),
    "PUT /admin/tenants/{tenant}/limits": Operation(
        id="setLimits", says="Set a tenant's limits", body=keys.LimitsBody, answer=Limits
    ),
    "GET /admin/tenants/{tenant}/retention": Operation(
        id="getRetention", says="Read a tenant's retention", answer=admin_objects.RetentionOfTenant
    ),
    "PUT /admin/tenants/{tenant}/retention": Operation(
        id="setRetention",
        says="Erase a tenant's conversations by age",
        body=retention.RetentionBody,
        answer=admin_objects.RetentionOfTenant,
    ),
    "DELETE /admin/tenants/{tenant}/retention": Operation(
        id="clearRetention", says="Keep a tenant's conversations", answer=admin_objects.RetentionOfTenant
    ),
    "GET /admin/audit": Operation(
        id="listAuditViews", says="List the audit views", answer=admin_objects.ViewList
    ),
    "GET /admin/audit/conversations/{conversation_id}": Operation(
        id="auditConversation",
        says="All that the audit tells of a conversation",
        answer=admin_objects.ConversationAudit,
    ),
    "GET /admin/audit/{view}": Operation(
        id="readAuditView", says="Read an audit view", answer=admin_objects.ViewPage, query=FILTERS
    ),
    "GET /admin/events": Operation(
        id="readEvents",
        says="Read the log of events, page by page or as a stream",
        answer=admin_objects.EventPage,
        stream=RecordedEvent,
        headers=LAST_EVENT,
    ),
}

PLAIN: Mapping[str, Operation] = {
    "GET /healthz": Operation(id="health", says="Whether the process lives", answer=admin_objects.Health),
    "GET /readyz": Operation(
        id="readiness",
        says="Whether turns can be accepted",
        answer=admin_objects.Readiness,
        otherwise={503: admin_objects.Readiness},
    ),
    "GET /metrics": Operation(id="metrics", says="For Prometheus", answer=None, text=True),
    "GET /openapi.json": Operation(id="openapi", says="This document", answer=Json),
}
