-- Where a failure happened, if its consumer says so.
ALTER TABLE penstock.failure ADD COLUMN traceback text;
