-- Who may speak for whom, who gave and took that right, and when. Secrets are not here, nor anywhere else in the database.
CREATE VIEW audit.keys AS
SELECT key_id, tenant_id, scope, label, created_at, created_by, replaces, revoked_at, revoked_by
FROM public.api_keys;
