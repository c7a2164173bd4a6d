from secagg.config.client import ClientSettings as ClientSettings
from secagg.config.files import (
    is_client_file as is_client_file,
    load_client_settings as load_client_settings,
    load_host_settings as load_host_settings,
    load_server_settings as load_server_settings,
    load_task_settings as load_task_settings,
    has_task_section as has_task_section,
    task_from_document as task_from_document,
)
from secagg.config.loader import (
    LoadedSettings as LoadedSettings,
    load_settings as load_settings,
    setting as setting,
)
from secagg.config.server import (
    HostSettings as HostSettings,
    ServerSettings as ServerSettings,
)
from secagg.config.task import TaskSettings as TaskSettings, end_of_task as end_of_task
