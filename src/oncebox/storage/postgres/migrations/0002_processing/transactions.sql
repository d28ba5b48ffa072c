-- name: fence
-- Limits the time of the transaction, so that a suspended worker finds its transaction rolled back
-- when it continues. PostgreSQL before version 17 cannot end a transaction in pipeline mode: there
-- another worker reads the deadline from the name of the session and terminates the session.
CREATE FUNCTION {fence}(p_timeout text) RETURNS void LANGUAGE plpgsql VOLATILE AS $fence$
BEGIN
  IF p_timeout IS NULL THEN
    RETURN;
  ELSIF current_setting('server_version_num')::int >= 170000 THEN
    PERFORM set_config('transaction_timeout', p_timeout, true);
  ELSE
    PERFORM set_config('idle_in_transaction_session_timeout', p_timeout, true),
            set_config('application_name', 'oncebox until ' ||
              ceil(extract(epoch FROM clock_timestamp() + p_timeout::interval)), true);
  END IF;
END
$fence$;

-- name: guard
-- Fails unless this is still the transaction of the claim. It is sent in one pipeline with COMMIT, so
-- an error here prevents the COMMIT.
CREATE FUNCTION {guard}(p_xid text) RETURNS boolean LANGUAGE plpgsql AS $guard$
BEGIN
  IF pg_current_xact_id_if_assigned()::text IS DISTINCT FROM p_xid THEN
    RAISE EXCEPTION 'this is not the transaction of the claim any more' USING ERRCODE = 'OB001';
  END IF;
  RETURN true;
END
$guard$;
