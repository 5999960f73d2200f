"""ElasticFlow (Gu et al., ASPLOS 2023): jobs with deadlines that run on any of several numbers of GPUs."""
