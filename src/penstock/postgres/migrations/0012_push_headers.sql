-- As before, but without headers that say where a message died: only the server that moves a dead letter writes these.
CREATE OR REPLACE FUNCTION penstock.push(
  queue text, payload jsonb, priority integer DEFAULT 0, delay_ms bigint DEFAULT NULL, ttl_ms bigint DEFAULT NULL,
  key text DEFAULT NULL, headers jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  body   bytea := convert_to(payload::text, 'UTF8');
  answer json;
BEGIN
  IF queue IS NULL OR payload IS NULL OR priority IS NULL THEN
    RAISE EXCEPTION 'queue, payload and priority must not be null' USING ERRCODE = 'null_value_not_allowed';
  ELSIF length(body) > 524288 THEN
    RAISE EXCEPTION 'a payload of % bytes', length(body) USING ERRCODE = 'invalid_parameter_value',
      HINT = 'at most 524288; store large data elsewhere and push where it is';
  ELSIF priority < -2147483647 THEN
    RAISE EXCEPTION 'priority is %, and must be at least -2147483647', priority USING ERRCODE = 'invalid_parameter_value';
  ELSIF delay_ms NOT BETWEEN 0 AND 315360000000 THEN
    RAISE EXCEPTION 'delay_ms is %, and must be 0 to 315360000000', delay_ms USING ERRCODE = 'invalid_parameter_value';
  ELSIF ttl_ms NOT BETWEEN 1 AND 315360000000 THEN
    RAISE EXCEPTION 'ttl_ms is %, and must be 1 to 315360000000', ttl_ms USING ERRCODE = 'invalid_parameter_value';
  ELSIF length(key) NOT BETWEEN 1 AND 512 OR key ~ '[[:cntrl:]]' THEN
    RAISE EXCEPTION 'an idempotency key has 1 to 512 printable characters' USING ERRCODE = 'invalid_parameter_value';
  ELSIF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON object of strings, not %', jsonb_typeof(headers)
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF headers IS NOT NULL AND EXISTS (SELECT 1 FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string') THEN
    RAISE EXCEPTION 'headers are a JSON object of strings' USING ERRCODE = 'invalid_parameter_value';
  ELSIF headers IS NOT NULL AND (SELECT sum(length(h.key) + length(h.value)) FROM jsonb_each_text(headers) h) > 16384 THEN
    RAISE EXCEPTION 'headers of more than 16384 characters' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  headers := nullif(headers - ARRAY(SELECT h FROM jsonb_object_keys(headers) h WHERE starts_with(h, 'penstock-origin')),
                    '{}');
  answer := penstock.push_messages(NULL, NULL, true, queue, ARRAY[body], ARRAY[2], ARRAY[priority], ARRAY[delay_ms],
                                   ARRAY[ttl_ms], ARRAY[key], ARRAY[headers::text]);
  CASE answer ->> 'refused'
    WHEN 'queue' THEN
      RAISE EXCEPTION 'queue "%" does not exist', queue USING ERRCODE = 'undefined_object',
        HINT = 'create it first, for example with `penstock queue add`';
    WHEN 'size' THEN
      RAISE EXCEPTION 'queue "%" holds % of at most % messages', queue, answer ->> 'undone', answer ->> 'max_size'
        USING ERRCODE = 'configuration_limit_exceeded';
    WHEN 'rate' THEN
      RAISE EXCEPTION 'queue "%" takes % messages a second', queue, answer ->> 'push_rate'
        USING ERRCODE = 'configuration_limit_exceeded';
    ELSE
      RETURN coalesce((answer -> 'duplicates' -> '0' ->> 0)::bigint, (answer ->> 'first')::bigint);
  END CASE;
END
$$;
