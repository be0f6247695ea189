"""Problems of systems biology in PEtab and SBML: read, simulated, fitted and written."""
