"""Tests of the verbs datapath between processes without a device, over softverbs."""
