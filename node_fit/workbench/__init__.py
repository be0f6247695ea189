"""The page of `node-fit app`: a thin server on this machine around the commands, their tables and run directories."""
