{{- define "coxswain.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* A Service's name begins with a letter and has no dots; a release's may. */}}
{{- define "coxswain.fullname" -}}
{{- $name := include "coxswain.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- $label := default $full .Values.fullnameOverride | replace "." "-" }}
{{- regexReplaceAll "^([0-9])" $label "r-${1}" | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* For objects outside the release's namespace: releases of the same name in other namespaces keep theirs. */}}
{{- define "coxswain.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "coxswain.fullname" .) }}
{{- end }}

{{- /* What selects the operator's pods: never changes for a release. */}}
{{- define "coxswain.selector" -}}
app.kubernetes.io/name: {{ include "coxswain.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "coxswain.labels" -}}
{{ include "coxswain.selector" . }}
app.kubernetes.io/part-of: coxswain
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* With labels of one kind of object, which win: list of the root and these. A key that came twice would be refused by kustomize,
and so by Flux. */}}
{{- define "coxswain.labelsAnd" -}}
{{- merge (dict) (default dict (last .)) (include "coxswain.labels" (first .) | fromYaml) | toYaml }}
{{- end }}

{{- define "coxswain.serviceAccount" -}}
{{- default (ternary (include "coxswain.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- /* The reference of one image: list of the root and the image's own values. */}}
{{- define "coxswain.image" -}}
{{- $root := first . }}
{{- $image := last . }}
{{- $path := list $root.Values.image.registry $image.repository | compact | join "/" }}
{{- if not (contains "/" $path) }}
{{- fail (printf "image.registry is empty, and nodes would look for %s in docker.io/library; set it to the registry and path of your images, such as registry.example/team, or to localhost for images that the nodes have" $path) }}
{{- end }}
{{- if $image.digest }}
{{- printf "%s@%s" $path $image.digest }}
{{- else }}
{{- printf "%s:%s" $path (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- /* Fails where another release reconciles the same jobs everywhere. Sees nothing without a server. */}}
{{- define "coxswain.alone" -}}
{{- $own := printf "%s-jobs" (include "coxswain.clusterName" .) }}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- if and (ne .metadata.name $own) (eq (dig "coxswain.dev/managed-by" "" (.metadata.annotations | default dict)) $.Values.managedBy) }}
{{- fail (printf "managedBy: %s: the release of ClusterRole %s reconciles these jobs in all namespaces already, and the two would undo each other's work; give this release another managedBy, or restrict both by watchNamespaces" $.Values.managedBy .metadata.name) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the operator may do where the jobs are. No wildcards, and Secrets are only made. */}}
{{- define "coxswain.rules" -}}
- apiGroups: [coxswain.dev]
  resources: [trainingjobs]
  verbs: [list, watch, delete]  # delete: ttlSecondsAfterFinished
- apiGroups: [coxswain.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]  # where the plugin OwnerReferencesPermissionEnforcement guards blockOwnerDeletion
- apiGroups: [coxswain.dev]
  resources: [datasources, datamixes, parallelismpolicies]
  verbs: [list, watch]
- apiGroups: [coxswain.dev]
  resources: [trainingjobs/status, datasources/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods, configmaps, services]
  verbs: [list, watch, create, delete]
{{- if .Values.rbac.kueue }}
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]  # a mark for Kueue, once a group of pods is over
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, create, delete]  # of jobs with minCount; of groups that will never start: Kueue keeps their pods until then
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}
{{- $gangs := .Values.gangScheduling.backend }}
{{- if has $gangs (list "Auto" "Native") }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: [list, watch, create, delete]
{{- end }}
{{- if has $gangs (list "Auto" "Volcano") }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [list, watch, create, delete]
{{- end }}
{{- if has $gangs (list "Auto" "Coscheduling") }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [list, watch, create, delete]
{{- end }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create{{ if .Values.rbac.readTokens }}, get{{ end }}]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]  # the Pod Security level of a job's own namespace
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
