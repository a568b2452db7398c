-- The chain up to each row, as a window function in the order of the versions; `previous` is empty before version 1.
CREATE AGGREGATE audit.chained(previous bytea, digest bytea) (SFUNC = audit.chain_link, STYPE = bytea);
