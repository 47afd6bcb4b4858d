"""SGLang: a fraction of the memory that was free before the weights, minus the weights, cut into token pools."""
