-- Roles belong to the whole cluster, so another database's migration may be making them at this moment.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['everturn_owner', 'everturn_service', 'everturn_fleet', 'everturn_auditor'] LOOP
        IF to_regrole(role) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    FOREACH role IN ARRAY ARRAY['everturn_owner', 'everturn_service', 'everturn_fleet', 'everturn_auditor'] LOOP
        IF NOT pg_has_role(current_user, role, 'SET') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', role);
        END IF;
    END LOOP;
    IF NOT pg_has_role('everturn_fleet', 'everturn_service', 'USAGE') THEN
        GRANT everturn_service TO everturn_fleet;
    END IF;
    IF NOT has_database_privilege('everturn_owner', current_database(), 'CREATE') THEN
        EXECUTE format('GRANT CREATE ON DATABASE %I TO everturn_owner', current_database());
    END IF;
    IF NOT has_schema_privilege('everturn_owner', 'public', 'CREATE') THEN
        GRANT CREATE ON SCHEMA public TO everturn_owner;
    END IF;
END
$$
