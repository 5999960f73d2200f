# The flows of this repository, and what they import, upon the image of `Dockerfile`. Yours may look the same.
#
#   docker build --file deployments/image/Dockerfile --tag prefect-gpu:1 --build-arg PACKAGES="optuna pandas" .
#   docker build --file deployments/image/flows.Dockerfile --tag trainings:1 .
ARG BASE_IMAGE=prefect-gpu:1
FROM ${BASE_IMAGE}
COPY flows/ /flows/flows/
