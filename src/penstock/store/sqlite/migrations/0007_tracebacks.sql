-- Where a failure happened, if its consumer says so.
ALTER TABLE penstock_failure ADD COLUMN traceback TEXT;
