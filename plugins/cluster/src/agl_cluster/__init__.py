"""A run over several processes and machines: servers, runners, gateways, and where files are kept."""
