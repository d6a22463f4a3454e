"""Queue pairs between processes without any device: weft's verbs datapath over softverbs."""
